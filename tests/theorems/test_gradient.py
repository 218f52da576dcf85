"""Statements 12 to 15: they hold, are caught on doctored evidence, or do not apply."""

import re
from dataclasses import replace

import numpy as np
import pytest

from equipoise.expected.dual import Expected
from equipoise.expected.laws import Beta, Histogram, TruncatedNormal, Uniform
from equipoise.optimum.loop import FixedScores, inverse_rule
from equipoise.theorems import verify
from equipoise.theorems.evidence.curvatures import Curvature, curvature_at, curvature_of_draws
from equipoise.theorems.evidence.draws import draw_batches, draws_of
from equipoise.theorems.evidence.runs import run_loop
from equipoise.theorems.statements import gradient
from equipoise.theorems.verdict import HypothesisError
from equipoise.trace import Trace, TraceWriter
from tests.theorems.cases import lively, recorded, scores, step_where

SHIFT = np.linspace(-0.05, 0.05, 6)
EXPECTED = Expected(Beta(np.linspace(2, 4, 6), 3), 2, num_tokens=48)
SAMPLED = [
    gradient.unbiased_gradient,
    gradient.gradient_variance,
    gradient.sampled_second_derivative,
]
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


def softmax(tokens=4096, experts=8, sequence=0, seed=0, offset=1.0):
    """Softmax scores; tokens of one sequence share an offset of their logits."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(tokens, experts)) + 0.3 * rng.normal(size=experts)
    if sequence:
        logits += np.repeat(offset * rng.normal(size=(tokens // sequence, experts)), sequence, 0)
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


@pytest.mark.parametrize("statement", SAMPLED)
@pytest.mark.parametrize("sequence", [0, 128], ids=["independent", "sequences"])
@pytest.mark.parametrize("seed", range(6))
def test_recorded_batches_of_any_joint_law(statement, sequence, seed, tmp_path):
    """Softmax gates, and texts whose tokens are correlated: nothing honest is accused."""
    verdict = statement(trace_of(softmax(sequence=sequence, seed=seed), tmp_path / "t"))
    assert verdict.holds, verdict
    assert verdict.worst_step == 7


@pytest.mark.parametrize("statement", CURVED)
def test_recorded_batches_have_no_known_density(statement, tmp_path):
    assert (
        "law of recorded scores is not known" in statement(trace_of(softmax(), tmp_path / "t")).why
    )


@pytest.mark.parametrize(
    "batch",
    [
        np.full((256, 6), 0.5),
        2 + np.random.default_rng(0).random((256, 6)),
        np.random.default_rng(0).random((10, 6)),
        -np.random.default_rng(0).random((256, 6)),
    ],
    ids=["all equal", "all above 1", "few tokens", "negative"],
)
def test_any_batch_gets_verdicts(batch, tmp_path):
    for verdict in verify(trace_of(batch, tmp_path / "t")):
        assert not verdict.refuted, verdict
        assert verdict.applies or verdict.why


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
    wrong = replace(true, exact_weight=1.01 * true.exact_weight)
    assert gradient.second_derivative(wrong).holds is False
    lopsided = true.exact_weight.copy()
    lopsided[0, 1] *= 1.5
    assert gradient.strong_convexity(replace(true, exact_weight=lopsided)).holds is False
    assert gradient.strong_convexity(replace(true, exact_weight=-true.exact_weight)).holds is False


NARROWER = Expected(Beta(4 * np.linspace(2, 4, 6), 12), 2, num_tokens=48)


@pytest.mark.parametrize(("law", "others"), [(EXPECTED, NARROWER), (NARROWER, EXPECTED)])
def test_tokens_of_another_law_are_caught(law, others):
    """Half as wide, it has twice as many ties."""
    true = curvature_at(law, SHIFT)
    assert gradient.sampled_second_derivative(true).holds
    tokens = curvature_at(others, SHIFT).tokens
    assert gradient.sampled_second_derivative(replace(true, tokens=tokens)).holds is False


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_sampled_loads_catch_wrong_weights(factor, tmp_path):
    [draws] = draws_of(trace_of(softmax(tokens=32_768), tmp_path / "t"))
    piece = curvature_of_draws(draws)
    assert gradient.sampled_second_derivative(piece).holds
    # scores of the other half drawn together or apart: ties are denser or rarer than they are here
    other = replace(piece, other_tokens=piece.other_tokens * factor)
    assert gradient.sampled_second_derivative(other).holds is False


def test_loads_that_change_too_little_refute_strong_convexity():
    """Tokens that hardly switch, beside a law whose dual curves strongly."""
    true = curvature_at(Expected(Uniform(4), 1, 16), np.zeros(4))
    assert gradient.strong_convexity(true).holds
    # three in four tokens never switch
    held = true.tokens + np.where(np.arange(len(true.tokens))[:, None] % 4, [0.0, 0, 0, 5], 0.0)
    held = np.hstack([held[:, :3], held[:, 3:]])
    assert gradient.strong_convexity(replace(true, tokens=held)).holds is False


def test_both_moduli_are_reported():
    why = gradient.strong_convexity(curvature_at(Expected(Uniform(8), 2, 16), np.zeros(8))).why
    assert "T lambda_2 = 18.3" in why
    least, most = (float(text) for text in re.findall(r"at (?:least|most) ([\d.]+)", why))
    # c_K at a diameter that is nearly 0 is nearly the weight at p = 0
    assert 14 < least < most < 18.3


@pytest.mark.parametrize("diameter", [0.6, 0.75, 0.9])
def test_wide_shifts_of_many_experts_are_sound(diameter):
    """lambda_2 is far below the rounding of the largest weights: it is not asked to exceed c_K."""
    wide = curvature_at(Expected(Uniform(64), 6, 64), np.linspace(0, diameter, 64))
    assert gradient.strong_convexity(wide).holds


FAR_APART = TruncatedNormal(np.linspace(0.1, 0.9, 8), 0.02)
NARROW = Histogram(np.random.default_rng(0).integers(1, 9, (6, 8)), np.linspace(0.5, 0.501, 9))


@pytest.mark.parametrize("law", [FAR_APART, NARROW], ids=["far apart", "narrow"])
@pytest.mark.parametrize(
    "statement", [*CURVED, gradient.sampled_second_derivative], ids=lambda each: each.name
)
def test_laws_of_another_scale_are_not_accused(statement, law):
    tolerance = 1e-5 if law is NARROW else 1e-10
    expected = Expected(law, 2, 64, tolerance=tolerance)
    verdict = statement(curvature_at(expected, np.zeros(law.num_experts)))
    assert not verdict.refuted, verdict


TOUCHING = Histogram([[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0]], np.linspace(0, 1, 5))
SPIKED = Histogram(
    [
        [8, 1, 2, 2, 2, 5, 3, 4, 2, 8, 6],
        [6, 1, 2, 8, 3, 7, 7, 1, 4, 5, 4],
        [1, 6, 3, 3, 4, 3, 4, 7, 4, 6, 8],
        [2, 3, 5, 2, 6, 6, 6, 8, 4, 8, 8],
        [8, 3, 1, 7, 8, 3, 6, 2, 7, 7, 4],
    ],
    [0.1124, 0.1195, 0.1479, 0.1883, 0.4562, 0.5199, 0.6106, 0.6965, 0.6967, 0.7787, 0.87, 0.94],
)
"""one of its bins is very narrow"""


@pytest.mark.parametrize("law", [TOUCHING, SPIKED], ids=["touching", "spiked"])
@pytest.mark.parametrize(
    "statement",
    [gradient.second_derivative, gradient.sampled_second_derivative],
    ids=lambda each: each.name,
)
def test_corners_of_the_weights_are_not_accused(statement, law):
    """Where two experts' bins only touch, their weight is 0 on one side and grows on the other.
    Where narrow ones meet, it is a peak.
    """
    for shift in (np.zeros(law.num_experts), np.linspace(-0.05, 0.05, law.num_experts)):
        verdict = statement(curvature_at(Expected(law, 2, 64, tolerance=1e-8), shift))
        assert not verdict.refuted, verdict


def test_integrals_of_the_weights_are_those_of_the_loads():
    """Between the corners, and in even pieces where corners are many: against pi itself."""
    many = Histogram.of(np.random.default_rng(0).random((4000, 4)), bins=40)
    direction = np.array([0.5, 0.1, -0.5, -0.1, 0.2])
    for law, shift in ((SPIKED, np.zeros(5)), (TOUCHING, np.zeros(3)), (many, np.full(4, 0.01))):
        d, expected = direction[: shift.size], Expected(law, 2, tolerance=1e-8)
        ahead, behind = (expected.selection_probability(shift + s * d) for s in (0.1, -0.1))
        found = curvature_at(expected, shift).curvature_integral(d, 0.1)
        assert found == pytest.approx(d @ (ahead - behind), rel=5e-3)


def nearly_collapsed(folder, step, deviants):
    """A batch of 1,024 tokens that all choose alike but for a few, of which the half that is held
    out has all or none.
    """
    batch = np.tile([0.9, 0.8, 0.2, 0.1], (1024, 1)) + 1e-3 * np.random.default_rng(0).random(4)
    order = np.random.default_rng(step).permutation(1024)
    batch[order[deviants]] = [0.1, 0.2, 0.8, 0.9]
    with TraceWriter(folder, top_k=2, layers=1) as writer:
        zero, loads = np.zeros(4), np.bincount(np.argsort(-batch, 1)[:, :2].ravel(), minlength=4)
        writer.append(step, 0, shift=zero, shift_after=zero, loads=loads, scores=batch, whole=True)
    return Trace.open(folder)


@pytest.mark.parametrize("deviants", [[1000], [600, 700, 800], [3], list(range(0, 512, 50))])
def test_batches_that_nearly_collapsed_are_not_accused(deviants, tmp_path):
    """Whether a handful of tokens was held out or drawn is chance: two trainings were accused."""
    trace = nearly_collapsed(tmp_path / "t", 3, deviants)
    for statement in (gradient.unbiased_gradient, gradient.gradient_variance):
        assert statement(trace).holds, statement(trace)
    [draws] = draws_of(trace)
    more = draws.loads + np.array([-2, 0, 2, 0])
    assert gradient.unbiased_gradient(replace(draws, loads=more)).holds is False


def test_strong_convexity_asks_for_a_positive_density():
    weak = Histogram([[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 0]], np.linspace(0, 1, 5))
    verdict = gradient.strong_convexity(curvature_at(Expected(weak, 1, 64), np.zeros(3)))
    assert not verdict.applies
    assert "errata 17" in verdict.why


def test_strong_convexity_needs_a_choice_and_a_domain():
    all_taken = Curvature(
        np.zeros(3), 3, np.random.default_rng(0).random((512, 3)), Expected(Uniform(3), 3),
        np.zeros((3, 3)),
    )  # fmt: skip
    assert "K = E" in gradient.strong_convexity(all_taken).why
    far = curvature_at(Expected(Uniform(3), 1), np.array([0.99, 0, 0]))
    assert "is not below 1" in gradient.strong_convexity(far).why


def test_a_bound_of_c_k_that_underflows_proves_nothing():
    """Tails of narrow laws, multiplied: positive, and below the least float64."""
    narrow = Expected(TruncatedNormal(np.full(4, 0.5), 0.02), 1, num_tokens=64)
    verdict = gradient.strong_convexity(curvature_at(narrow, np.array([0.0, 0.0, 0.9, 0.9])))
    assert not verdict.applies
    assert "c_K is below the least float64" in verdict.why


def test_the_drift_of_the_mean_is_u_times_the_mean_sign():
    run = lively(steps=20)
    verdict = gradient.mean_drift(run)
    assert verdict.holds
    assert "the mean moved by" in verdict.why
    step = step_where(run, lambda step: step.sign.sum() != 0)
    centred = replace(step, shift_after=step.shift_after - step.moved.mean())
    assert "centres its step" in gradient.mean_drift([centred]).why
    assert gradient.mean_drift([replace(step, shift_after=step.shift_after + 0.1)]).holds is False


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


def test_histograms_of_recorded_scores():
    law = Histogram.of(np.random.default_rng(0).random((5000, 3)), bins=16)
    np.testing.assert_allclose(law.below(np.full(3, 0.25)), 0.25, atol=0.03)


@pytest.mark.parametrize("known", [{}, {"expected": EXPECTED}, {"exact_weight": np.ones((6, 6))}])
def test_half_a_law_is_none(known):
    curved = Curvature(SHIFT, 2, EXPECTED.law.sample(np.random.default_rng(0), 8), **known)
    with pytest.raises(HypothesisError, match="this needs its density"):
        curved.require_law()
