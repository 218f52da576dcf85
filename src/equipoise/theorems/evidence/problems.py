"""The built-in problems `equipoise verify` runs on: small, seeded, and chosen so that every
statement applies somewhere.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from equipoise.expected.dual import Expected
from equipoise.expected.laws import Beta, TruncatedNormal, Uniform
from equipoise.optimum.loop import Array, FixedScores, deepseek, inverse
from equipoise.theorems.evidence.draws import Draws, draw
from equipoise.theorems.evidence.program import Run, run_loop
from equipoise.theorems.statements.regret import Journey, descend


def sigmoid_scores(tokens: int, experts: int, seed: int) -> Array:
    """Experts liked unequally."""
    dice = np.random.default_rng(seed)
    return 1 / (1 + np.exp(-dice.normal(size=(tokens, experts)) - 0.5 * dice.normal(size=experts)))


def softmax_scores(tokens: int, experts: int, seed: int) -> Array:
    dice = np.random.default_rng(seed)
    logits = dice.normal(size=(tokens, experts)) + 0.5 * dice.normal(size=experts)
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


@cache
def runs() -> tuple[Run, ...]:
    """Runs of the paper's loop on fixed scores."""
    sparse = 0.5 - np.array(
        [[0, 0.40], [0, 0.29], [0, 0.17], [0, 0.06]]
    )  # gaps so far apart that u = 0.02 is below u-bar
    pushed = np.array([2.0, 0.0, 0.0, -2.0])  # a shift so far out that experts dominate others
    return (
        run_loop(FixedScores(sigmoid_scores(256, 8, 0), 2), deepseek(5e-3), 150),
        run_loop(FixedScores(sigmoid_scores(128, 16, 1), 4), deepseek(1e-3), 150),
        run_loop(FixedScores(softmax_scores(256, 8, 2), 2), deepseek(1e-3), 150),
        run_loop(FixedScores(sigmoid_scores(64, 4, 3), 2), deepseek(1e-4), 150),
        run_loop(FixedScores(sigmoid_scores(32, 4, 4), 2), deepseek(5e-3), 800),
        run_loop(FixedScores(sparse, 1), deepseek(0.02), 40),
        run_loop(FixedScores(sigmoid_scores(64, 4, 5), 2), deepseek(1e-3), 20, shift=pushed),
        run_loop(FixedScores(sigmoid_scores(64, 4, 6), 2), inverse(1e-3), 50),
    )


@cache
def draws() -> tuple[Draws, ...]:
    """Batches of independent scores at some shifts, one of them far from balance."""
    unlike = Expected(Beta(np.linspace(2, 4, 8), 3), 2, num_tokens=64)
    bells = Expected(TruncatedNormal(np.linspace(0.3, 0.5, 12), 0.2), 4, num_tokens=48)
    return (
        draw(unlike, np.linspace(-0.05, 0.05, 8), batches=400, seed=0),
        draw(bells, np.zeros(12), batches=400, seed=1),
        draw(
            Expected(Uniform(6), 1, num_tokens=32),
            np.array([0.6, 0, 0, 0, 0, -0.3]),
            batches=400,
            seed=2,
        ),
    )


@cache
def journey() -> Journey:
    """The regret experiment, small."""
    return descend(Expected(Uniform(8), 2, num_tokens=64), rounds=200, seeds=64)
