"""Statements 12 to 15: they hold, are caught on doctored evidence, or do not apply."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.expected.dual import Expected
from equipoise.expected.laws import Beta, Histogram, Uniform
from equipoise.optimum.loop import FixedScores, inverse_rule
from equipoise.theorems.evidence.curvatures import curvature_at
from equipoise.theorems.evidence.draws import dependence_of, draw_batches
from equipoise.theorems.evidence.runs import run_loop
from equipoise.theorems.statements import gradient
from equipoise.trace import Trace, TraceWriter
from tests.theorems.cases import lively, recorded, scores

SHIFT = np.linspace(-0.05, 0.05, 6)
EXPECTED = Expected(Beta(np.linspace(2, 4, 6), 3), 2, num_tokens=48)
SAMPLED = [gradient.unbiased_gradient, gradient.gradient_variance]
CURVED = [gradient.second_derivative, gradient.strong_convexity]


@pytest.fixture(scope="module")
def draws():
    return draw_batches(EXPECTED, SHIFT, batches=300, seed=0)


def trace_of(batch, folder, top_k=2):
    with TraceWriter(folder, top_k=top_k, layers=1) as writer:
        chosen = np.argsort(np.argsort(-batch, 1), 1) < top_k
        zero = np.zeros(batch.shape[1])
        writer.append(
            7, 0, shift=zero, shift_after=zero, loads=chosen.sum(0), scores=batch, whole=True
        )
    return Trace.open(folder)


@pytest.mark.parametrize("statement", SAMPLED + CURVED)
def test_they_hold_on_draws(statement, draws):
    verdict = statement(draws)
    assert verdict.holds, verdict
    assert isinstance(verdict.margin, float)


@pytest.mark.parametrize("statement", SAMPLED + CURVED)
def test_a_bare_law_will_do(statement):
    assert statement(Expected(Uniform(4), 1, num_tokens=32)).holds


@pytest.mark.parametrize("statement", SAMPLED + CURVED)
def test_they_hold_on_an_independent_batch(statement, tmp_path):
    batch = Beta(np.linspace(2, 3, 6), 3).sample(np.random.default_rng(0), 4096).astype(np.float32)
    verdict = statement(trace_of(batch, tmp_path / "t"))
    assert verdict.holds, verdict
    assert verdict.worst_step == 7


@pytest.mark.parametrize("statement", SAMPLED + CURVED)
def test_softmax_gates_are_not_independent(statement, tmp_path):
    logits = np.random.default_rng(0).normal(size=(256, 6))
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    verdict = statement(trace_of(softmax, tmp_path / "t"))
    assert not verdict.applies
    assert "softmax" in verdict.why


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            np.random.default_rng(0).random((4096, 1)) * 0.5
            + 0.1 * np.random.default_rng(1).random((4096, 6)),
            "correlated",
        ),
        (np.random.default_rng(0).random((10, 6)), "too few"),
        (np.random.default_rng(0).random((64, 6)) * 3 - 1, "the theory has them in"),
    ],
)
def test_other_batches_do_not_apply(batch, message, tmp_path):
    assert message in gradient.unbiased_gradient(trace_of(batch, tmp_path / "t")).why


def test_a_biased_load_is_caught(draws):
    shifted = draws.loads + np.array([1, -1, 0, 0, 0, 0])
    verdict = gradient.unbiased_gradient(replace(draws, loads=shifted))
    assert verdict.holds is False
    assert verdict.margin < 0


def test_a_wrong_variance_is_caught(draws):
    """Loads that swing twice as far around the same mean."""
    mean = np.round(draws.loads.mean(0)).astype(int)
    assert gradient.gradient_variance(replace(draws, loads=2 * draws.loads - mean)).holds is False


def test_gradients_beyond_collapse_are_caught(draws):
    impossible = draws.loads.copy()
    impossible[0] = [96, 0, 0, 0, 0, 0]
    assert "collapse" in gradient.gradient_variance(replace(draws, loads=impossible)).why


def test_collapse_attains_sigma_squared():
    """E||g||^2 = T^2 (K - K^2/E) when the same K experts take everything."""
    T, K, E = 48, 2, 6
    far = Expected(Uniform(E), K, T).at([5.0, 5.0, 0, 0, 0, 0])
    assert far.second_moment == pytest.approx(T * T * (K - K * K / E), rel=1e-12)


def test_few_batches_have_no_variance(draws):
    assert (
        "too few for a variance"
        in gradient.gradient_variance(replace(draws, loads=draws.loads[:3])).why
    )


def test_wrong_weights_are_caught():
    true = curvature_at(EXPECTED, SHIFT)
    assert gradient.second_derivative(true).holds
    assert gradient.strong_convexity(true).holds
    assert gradient.second_derivative(replace(true, weight=1.01 * true.weight)).holds is False
    lopsided = true.weight.copy()
    lopsided[0, 1] *= 1.5
    assert gradient.strong_convexity(replace(true, weight=lopsided)).holds is False
    assert gradient.strong_convexity(replace(true, weight=-true.weight)).holds is False


def test_both_moduli_are_reported():
    why = gradient.strong_convexity(curvature_at(Expected(Uniform(8), 2, 16), np.zeros(8))).why
    assert "T lambda_2 = 18.3" in why
    assert "T E c_K = 18.3" in why  # at p = 0 with diameter 0 they are the same


def test_strong_convexity_needs_a_choice_and_a_domain():
    assert (
        "K = E" in gradient.strong_convexity(curvature_at(Expected(Uniform(3), 3), np.zeros(3))).why
    )
    assert (
        "diameter 2.00"
        in gradient.strong_convexity(
            curvature_at(Expected(Uniform(3), 1), np.array([2.0, 0, 0]))
        ).why
    )


def test_the_sum_is_kept_and_centring_changes_nothing(tmp_path):
    assert "may drift" in gradient.zero_sum_projection(lively(steps=20)).why
    homogeneous = gradient.zero_sum_projection(
        run_loop(FixedScores(scores(), 2), inverse_rule(1e-3), 20)
    )
    assert homogeneous.holds
    assert "is kept" in homogeneous.why
    assert gradient.zero_sum_projection(recorded(tmp_path / "t")).holds


def test_zero_sums_are_caught_and_refused():
    step = next(iter(run_loop(FixedScores(scores(), 2), inverse_rule(1e-3), 3)))
    assert (
        gradient.zero_sum_projection(
            [replace(step, loads=step.loads + np.array([0, 0, 0, 5]))]
        ).margin
        == -5
    )
    drifting = replace(step, shift_after=step.shift_after + 0.1)
    assert gradient.zero_sum_projection([drifting]).holds is False
    rerouted = step.before.copy()
    rerouted[3] = ~rerouted[3]
    assert gradient.zero_sum_projection([replace(step, before=rerouted)]).holds is False
    more = step.before.copy()
    more[0] = True
    assert (
        "not every token takes K experts"
        in gradient.zero_sum_projection([replace(step, before=more)]).why
    )


def test_constant_scores_say_nothing():
    assert "do not vary" in dependence_of(
        np.hstack([np.full((50, 1), 0.5), np.random.default_rng(0).random((50, 2))])
    )


def test_histograms_of_recorded_scores():
    law = Histogram.of(np.random.default_rng(0).random((5000, 3)), bins=16)
    np.testing.assert_allclose(law.below(np.full(3, 0.25)), 0.25, atol=0.03)
