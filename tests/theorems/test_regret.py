"""Statements 16 and 17, and the experiment behind them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.expected.dual import Expected
from equipoise.expected.laws import Beta, Uniform
from equipoise.theorems.evidence.journeys import project_shifts, run_descents
from equipoise.theorems.statements.regret import logarithmic_regret, one_step, regret_at_best

STATEMENTS = [one_step, logarithmic_regret, regret_at_best]


@pytest.fixture(scope="module")
def journey():
    return run_descents(Expected(Uniform(8), 2, num_tokens=64), rounds=60, seeds=48)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_they_hold(statement, journey):
    verdict = statement(journey)
    assert verdict.holds, verdict


def test_they_hold_for_unlike_experts():
    journey = run_descents(
        Expected(Beta(np.linspace(2, 3, 6), 3), 2, num_tokens=128), rounds=60, seeds=32, share=0.4
    )
    assert one_step(journey).holds, one_step(journey)
    assert logarithmic_regret(journey).holds


def test_a_bare_law_will_do():
    assert logarithmic_regret(Expected(Uniform(4), 1, num_tokens=64)).holds


def test_more_regret_is_caught(journey):
    for statement in (logarithmic_regret, regret_at_best):
        assert statement(replace(journey, regrets=journey.regrets + 200)).holds is False


def test_leaving_the_optimum_is_caught(journey):
    """Each seed's next shift lies far from p*: no allowance for noise explains that."""
    shifts = journey.shifts.copy()
    shifts[3] = np.tile([0.4, -0.4], 4)
    verdict = one_step(replace(journey, shifts=shifts))
    assert verdict.applies, verdict.why
    assert verdict.holds is False


@pytest.mark.parametrize("statement", STATEMENTS)
def test_hypotheses_are_asked_for(statement, journey):
    assert "do not sum to 0" in statement(replace(journey, shifts=journey.shifts + 0.1)).why
    assert "left the domain" in statement(replace(journey, shifts=30 * journey.shifts)).why
    assert "more than the curvature" in statement(replace(journey, mu=3 * journey.mu)).why


def test_regret_is_flat_in_the_tokens():
    """Errata 10: about 4.6 (E = 8, K = 2, N = 400) for every T; the paper's bound grows."""
    for tokens, papers in ((16, 73.4), (64, 293.6)):
        journey = run_descents(
            Expected(Uniform(8), 2, num_tokens=tokens), rounds=400, seeds=60, share=1.0
        )
        mean, error = journey.regret
        assert journey.bound(journey.collapse) == pytest.approx(papers, rel=1e-3)
        assert journey.bound(journey.variance_at_best) == pytest.approx(4.59, abs=0.01)
        assert abs(mean - 4.5) < 0.35 + 3 * error


@given(st.integers(0, 10**6), st.integers(2, 9), st.floats(0.05, 3))
@settings(max_examples=100, deadline=None)
def test_projections_are_the_nearest_points(seed, experts, diameter):
    rng = np.random.default_rng(seed)
    shifts = rng.normal(size=(3, experts))
    nearest = project_shifts(shifts, diameter)
    np.testing.assert_allclose(nearest.sum(1), 0, atol=1e-12)
    assert np.ptp(nearest, axis=1).max() <= diameter * (1 + 1e-9)
    np.testing.assert_allclose(project_shifts(nearest, diameter), nearest, atol=1e-12)
    for _ in range(20):  # the angle to any other point of the set is at least right
        other = project_shifts(rng.normal(size=(3, experts)), diameter)
        assert (((shifts - nearest) * (other - nearest)).sum(1) <= 1e-9).all()


def test_flat_duals_have_no_step():
    with pytest.raises(ValueError, match="K = E"):
        run_descents(Expected(Uniform(3), 3), rounds=2, seeds=2)
