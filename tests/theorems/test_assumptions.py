"""What the paper assumes: each holds or fails where it should, and refutes nothing."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.expected.dual import Expected
from equipoise.expected.laws import Beta, Histogram, TruncatedNormal
from equipoise.optimum.loop import choose_top_k
from equipoise.theorems import verify
from equipoise.theorems.evidence.draws import draw_batches, draws_of
from equipoise.theorems.evidence.layer_paths import LayerPath
from equipoise.theorems.statements import assumptions
from equipoise.trace import Trace, TraceWriter
from tests.theorems.cases import lively

LAW = Expected(Beta(np.linspace(2, 3, 6), 3), 2, num_tokens=64)


def trace_of(batches, folder, sequence=None, top_k=2):
    about = {} if sequence is None else {"sequence_length": sequence}
    experts = batches[0].shape[1]
    with TraceWriter(folder, top_k=top_k, layers=1, about=about) as writer:
        for step, batch in enumerate(batches):
            loads = choose_top_k(batch, top_k).sum(0)
            zero = np.zeros(experts)
            fields = {"shift": zero, "shift_after": zero, "loads": loads}
            writer.append(step, 0, **fields, scores=batch, whole=True)
    return Trace.open(folder)


def sigmoid_batch(tokens=4096, experts=8, sequence=0, seed=0, skew=0.0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(tokens, experts)) + skew * np.arange(experts)
    if sequence:
        logits += np.repeat(rng.normal(size=(tokens // sequence, experts)), sequence, 0)
    return 1 / (1 + np.exp(-logits))


@pytest.fixture(scope="module")
def drawn():
    return draw_batches(LAW, np.zeros(6), batches=50, seed=0)


@pytest.mark.parametrize(
    "assumption",
    [
        assumptions.independent_tokens,
        assumptions.independent_experts,
        assumptions.positive_density,
        assumptions.optimum_in_domain,
    ],
    ids=lambda each: each.name,
)
def test_a_law_of_the_papers_meets_them(assumption, drawn):
    verdict = assumption(drawn)
    assert verdict.holds, verdict
    assert verdict.is_assumption


@pytest.mark.parametrize("seed", range(4))
def test_the_variance_of_sequences_is_inflated_by_what_they_share(seed, tmp_path):
    """Against a Monte Carlo of many sequences: loads of one sequence, and of tokens of many."""
    trace = trace_of([sigmoid_batch(sequence=128, seed=seed)], tmp_path / "t", sequence=128)
    verdict = assumptions.independent_tokens(trace)
    assert verdict.holds is False
    assert not verdict.refuted
    many = choose_top_k(sigmoid_batch(tokens=128 * 500, sequence=128, seed=99), 2)
    loads = many.reshape(500, 128, 8).sum(1)
    pi = many.mean(0)
    true = ((loads - 128 * pi) ** 2).sum(1).mean() / (128 * (2 - (pi**2).sum()))
    [draws] = draws_of(trace)
    inflation, error = assumptions.variance_inflation(choose_top_k(draws.scores, 2), 128)
    assert abs(inflation - true) < 4 * error
    assert f"{inflation:.2f} times as much" in verdict.why


def test_independent_tokens_are_not_accused(tmp_path):
    verdicts = [
        assumptions.independent_tokens(
            trace_of([sigmoid_batch(seed=seed)], tmp_path / f"{seed}", sequence=128)
        )
        for seed in range(12)
    ]
    assert all(verdict.holds for verdict in verdicts), verdicts


def test_softmax_experts_are_dependent(tmp_path):
    logits = np.random.default_rng(0).normal(size=(512, 6))
    scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    verdict = assumptions.independent_experts(trace_of([scores], tmp_path / "t"))
    assert verdict.holds is False
    assert "softmax" in verdict.why


def test_experts_that_share_a_factor_are_dependent(drawn):
    common = np.random.default_rng(1).random((len(drawn.scores), 1))
    assert assumptions.independent_experts(replace(drawn, scores=drawn.scores + common)).margin < 0


def test_gaps_in_a_density_are_told(drawn, tmp_path):
    gap = Expected(Histogram([[1, 1, 1], [1, 0, 1]], np.linspace(0, 1, 4)), 1, num_tokens=16)
    assert assumptions.positive_density(gap).holds is False
    narrow = assumptions.positive_density(trace_of([sigmoid_batch() / 2], tmp_path / "t"))
    assert narrow.margin <= -0.5
    assert "leave out" in narrow.why


def test_one_expert_with_gaps_is_told_among_others(drawn):
    """A quarter of (0, 1) is seen of expert 2, and all of it of the others."""
    scores = np.random.default_rng(0).random((4096, 4)) * [1, 1, 0.25, 1]
    verdict = assumptions.positive_density(replace(drawn, expected=None, scores=scores))
    assert verdict.margin == -0.75
    assert "scores of expert 2 leave out 75%" in verdict.why


def test_an_optimum_far_out_is_told():
    """Experts a distance of more than 1 apart are brought together by no shift of the domain."""
    scores = np.random.default_rng(0).random((400, 4)) * 0.1 + np.array([0, 0.5, 1.0, 1.5])
    near = draw_batches(LAW, np.zeros(6), batches=8, seed=0)
    far = replace(near, expected=None, scores=scores, shift=np.zeros(4))
    verdict = assumptions.optimum_in_domain(far)
    assert verdict.holds is False
    assert verdict.margin == pytest.approx(1 - 1.5, abs=0.15)
    known = Expected(TruncatedNormal([0.3, 0.6], 0.1), 1, num_tokens=16)
    assert assumptions.optimum_in_domain(known).margin == pytest.approx(0.7, abs=0.02)


def test_the_widest_shift_of_a_training_is_told():
    path = LayerPath(2, np.array([[0, 0, 0.0], [0.1, 0, -0.3], [0, 0, 0.2]]), (), ())
    assert assumptions.shift_in_domain(path).margin == pytest.approx(0.6)
    wide = replace(path, shifts=4 * path.shifts)
    assert assumptions.shift_in_domain(wide).holds is False


def test_scores_that_move_between_steps_are_told(tmp_path):
    same = [sigmoid_batch(sequence=128, seed=seed) for seed in range(2)]
    assert assumptions.stationary_scores(trace_of(same, tmp_path / "a")).holds
    moved = [sigmoid_batch(), sigmoid_batch(seed=1, skew=0.2)]
    verdict = assumptions.stationary_scores(trace_of(moved, tmp_path / "b"))
    assert verdict.holds is False
    assert "between steps 0 and 1" in verdict.why
    assert "fewer than two" in assumptions.stationary_scores(trace_of(same[:1], tmp_path / "c")).why


def test_ties_are_counted():
    run = lively(steps=3)
    assert assumptions.no_ties(run).holds
    step = next(iter(run))
    tied = step.scores.copy()
    tied[:5] = 0.5 - step.shift
    assert assumptions.no_ties([replace(step, scores=tied)]).margin == -5


def test_a_training_that_breaks_assumptions_is_not_refuted(tmp_path, capsys):
    """Exit code 0: an assumption that fails accuses nobody."""
    batches = [sigmoid_batch(sequence=128, seed=0), sigmoid_batch(sequence=128, seed=1, skew=1.0)]
    trace = trace_of(batches, tmp_path / "t", sequence=128)
    verdicts = [each for each in verify(trace) if each.applies]
    failed = [each for each in verdicts if not each.holds]
    assert len(failed) >= 3
    assert all(each.is_assumption for each in failed), failed
    assert main(["verify", str(tmp_path / "t")]) == 0
    tried = sum(each.is_assumption for each in verdicts)
    assert f"{len(failed)} of {tried} assumptions do not hold." in capsys.readouterr().out
