"""The built-in problems: small, seeded, and chosen so that every statement applies somewhere."""

from __future__ import annotations

from functools import cache

import numpy as np

from equipoise.expected.dual import Expected
from equipoise.expected.laws import Beta, TruncatedNormal, Uniform
from equipoise.optimum.arrays import Floats
from equipoise.optimum.loop import FixedScores, deepseek_rule, inverse_rule
from equipoise.theorems.evidence.draws import Draws, draw_batches
from equipoise.theorems.evidence.journeys import Journey, run_descents
from equipoise.theorems.evidence.runs import FixedScoresRun, run_loop


def sigmoid_scores(tokens: int, experts: int, seed: int) -> Floats:
    """Scores of a sigmoid gate that prefers some experts."""
    rng = np.random.default_rng(seed)
    return 1 / (1 + np.exp(-rng.normal(size=(tokens, experts)) - 0.5 * rng.normal(size=experts)))


def softmax_scores(tokens: int, experts: int, seed: int) -> Floats:
    """Scores of a softmax gate that prefers some experts."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(tokens, experts)) + 0.5 * rng.normal(size=experts)
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


@cache
def builtin_runs() -> tuple[FixedScoresRun, ...]:
    """Runs of the paper's loop on fixed scores."""
    # gaps so far apart that u = 0.02 is below u-bar
    sparse = 0.5 - np.array([[0, 0.40], [0, 0.29], [0, 0.17], [0, 0.06]])
    # a shift so far out that experts dominate others
    pushed = np.array([2.0, 0.0, 0.0, -2.0])
    return (
        run_loop(FixedScores(sigmoid_scores(256, 8, 0), 2), deepseek_rule(5e-3), 150),
        run_loop(FixedScores(sigmoid_scores(128, 16, 1), 4), deepseek_rule(1e-3), 150),
        run_loop(FixedScores(softmax_scores(256, 8, 2), 2), deepseek_rule(1e-3), 150),
        run_loop(FixedScores(sigmoid_scores(64, 4, 3), 2), deepseek_rule(1e-4), 150),
        run_loop(FixedScores(sigmoid_scores(32, 4, 4), 2), deepseek_rule(5e-3), 800),
        run_loop(FixedScores(sparse, 1), deepseek_rule(0.02), 40),
        run_loop(FixedScores(sigmoid_scores(64, 4, 5), 2), deepseek_rule(1e-3), 20, shift=pushed),
        run_loop(FixedScores(sigmoid_scores(64, 4, 6), 2), inverse_rule(1e-3), 50),
    )


def runs_from_zero() -> list[FixedScoresRun]:
    """Those that begin at p = 0, as trainings do."""
    return [run for run in builtin_runs() if not run.path.shifts[0].any()]


@cache
def builtin_draws() -> tuple[Draws, ...]:
    """Batches of independent scores at some shifts, one of them far from balance."""
    unlike = Expected(Beta(np.linspace(2, 4, 8), 3), 2, num_tokens=64)
    bells = Expected(TruncatedNormal(np.linspace(0.3, 0.5, 12), 0.2), 4, num_tokens=48)
    uniform = Expected(Uniform(6), 1, num_tokens=32)
    far = np.array([0.6, 0, 0, 0, 0, -0.3])
    return (
        draw_batches(unlike, np.linspace(-0.05, 0.05, 8), batches=400, seed=0),
        draw_batches(bells, np.zeros(12), batches=400, seed=1),
        draw_batches(uniform, far, batches=400, seed=2),
    )


@cache
def builtin_journeys() -> tuple[Journey, ...]:
    """The regret experiment, small: like experts, begun at the optimum, and unlike ones."""
    like = Expected(Uniform(8), 2, num_tokens=64)
    unlike = Expected(Beta(np.linspace(2, 6, 8), 3), 2, num_tokens=64)
    return (
        run_descents(like, rounds=200, seeds=64),
        run_descents(unlike, rounds=200, seeds=64, share=0.3),
        run_descents(unlike, rounds=200, seeds=64, schedule="1/sqrt n"),
    )
