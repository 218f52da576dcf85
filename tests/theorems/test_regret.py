"""Statements 16 and 17, and the experiment behind them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.expected.dual import Expected
from equipoise.expected.empirical import EmpiricalDual
from equipoise.expected.laws import Beta, TruncatedNormal, Uniform
from equipoise.theorems.evidence.journeys import project_shifts, run_descents
from equipoise.theorems.statements.regret import (
    batch_dual_is_convex,
    logarithmic_regret,
    one_step,
    regret_by_moments,
    regret_of_any_steps,
)
from tests.theorems.cases import lively, recorded, step_where

STRONG = [one_step, logarithmic_regret, regret_by_moments]
STATEMENTS = [*STRONG, regret_of_any_steps]


@pytest.fixture(scope="module")
def journey():
    return run_descents(Expected(Uniform(8), 2, num_tokens=64), rounds=60, seeds=48)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_they_hold(statement, journey):
    verdict = statement(journey)
    assert verdict.holds, verdict


@pytest.fixture(scope="module", params=[64, 256, 1024])
def unlike(request):
    """Experts whose laws differ: p = 0 is far from the optimum, and the first rounds cost T."""
    law = Beta(np.linspace(2, 6, 8), 3)
    return run_descents(Expected(law, 2, num_tokens=request.param), 60, 32, share=0.7, kappa=0.5)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_they_hold_for_unlike_experts(statement, unlike):
    assert statement(unlike).holds, statement(unlike)


def test_the_variance_at_the_optimum_bounds_no_regret(unlike):
    """Errata 10: an earlier form of 17 put T K (1 - K/E) in place of sigma^2; it is no theorem."""
    T, K, E = unlike.expected.num_tokens, 2, 8
    claimed = T * K * (1 - K / E) * (1 + np.log(unlike.rounds)) / (2 * unlike.mu)
    mean, error = unlike.regret
    if T == 1024:
        assert mean - 4 * error > claimed
    assert mean < unlike.step_costs.mean()


def test_regret_grows_with_the_tokens():
    """Elsewhere than at p* = 0 the first rounds cost f(p^1) - f(p*), T times a constant."""
    law = Beta(np.linspace(2, 6, 8), 3)
    few, many = (
        run_descents(Expected(law, 2, num_tokens=T), 60, 32, kappa=0.5).regret for T in (64, 1024)
    )
    assert many[0] - 4 * many[1] > few[0] + 4 * few[1]


def test_second_moments_met_are_the_exact_ones(journey):
    """Loads of the first round are all drawn at p = 0."""
    exact = journey.expected.at(np.zeros(8)).second_moment
    sample = journey.squares[0]
    assert abs(sample.mean() - exact) < 4 * sample.std() / np.sqrt(sample.size)


@pytest.mark.parametrize("statement", [one_step, regret_of_any_steps])
def test_other_steps_need_no_strong_convexity(statement):
    law = Beta(np.linspace(2, 6, 8), 3)
    journey = run_descents(Expected(law, 2, num_tokens=64), 60, 32, schedule="1/sqrt n")
    assert journey.mu == 0
    assert statement(journey).holds
    assert "steps are not 1/(mu n)" in logarithmic_regret(journey).why
    worse = replace(journey, regrets=journey.regrets + 1000)
    assert regret_of_any_steps(worse).holds is False
    grown = replace(journey, step_sizes=journey.step_sizes[::-1])
    assert "grow" in regret_of_any_steps(grown).why


def test_one_step_that_grows_is_enough(journey):
    sizes = journey.step_sizes.copy()
    sizes[5] = 1.1 * sizes[4]
    verdict = regret_of_any_steps(replace(journey, step_sizes=sizes))
    assert not verdict.applies
    assert "step sizes grow" in verdict.why


@pytest.mark.parametrize(
    ("rounds", "checked"),
    [(60, "1, 2, 3, 10, 60"), (9, "1, 2, 3, 9"), (1, "1"), (10, "1, 2, 3, 10")],
)
def test_the_first_rounds_and_the_last_are_checked(journey, rounds, checked):
    short = replace(
        journey,
        step_sizes=journey.step_sizes[:rounds],
        shifts=journey.shifts[: rounds + 1],
        regrets=journey.regrets[:rounds],
        squares=journey.squares[:rounds],
    )
    verdict = one_step(short)
    assert verdict.holds, verdict
    assert verdict.why.endswith(f" of {checked}")


def test_a_schedule_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="schedule must be one of"):
        run_descents(Expected(Uniform(4), 1), 2, 2, schedule="1/n^2")


@pytest.mark.parametrize("statement", STATEMENTS)
def test_an_optimum_outside_the_domain_does_not_apply(statement):
    """Errata 18: projecting need not come nearer to a p* outside."""
    far = Expected(TruncatedNormal([0.2, 0.5, 0.8], 0.15), 1, num_tokens=64)
    journey = run_descents(far, 20, 16, kappa=0.7)
    assert np.ptp(journey.best) > 0.3
    verdict = statement(journey)
    assert not verdict.applies
    assert "p* is outside the domain" in verdict.why


@pytest.mark.parametrize("statement", STATEMENTS)
def test_one_recorded_batch_is_enough(statement, tmp_path):
    """Tokens are drawn from its rows: softmax gates are as good as any."""
    assert statement(recorded(tmp_path / "t", tokens=4096)).holds


@pytest.mark.parametrize("seed", [12, 14])
def test_texts_of_few_kinds_of_tokens_have_a_mu(seed):
    """Their dual is nearly flat close to p*, where descents end: the first steps do not show it."""
    rng = np.random.default_rng(seed)
    kinds = 2 * rng.normal(size=(40, 8))
    logits = kinds[rng.integers(0, 40, 512)] + 0.05 * rng.normal(size=(512, 8))
    logits += 0.5 * rng.normal(size=8)
    scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    journey = run_descents(EmpiricalDual(scores, 2, 64), 100, 32, share=0.25)
    for statement in STATEMENTS:
        assert statement(journey).holds, statement(journey)


def test_too_small_a_batch_says_so(tmp_path):
    assert "too few to draw" in one_step(recorded(tmp_path / "t", tokens=16)).why


def test_a_dual_that_is_not_convex_is_caught():
    run = lively(steps=20)
    assert batch_dual_is_convex(run).holds
    step = step_where(run, lambda step: step.changed.size > 0)
    before = step.before.copy()
    before[:, 0] = True
    assert batch_dual_is_convex([replace(step, before=before)]).holds is False
    still = replace(step, shift_after=step.shift)
    assert "did not move" in batch_dual_is_convex([still]).why


def test_a_bare_law_will_do():
    assert logarithmic_regret(Expected(Uniform(4), 1, num_tokens=64)).holds


def test_more_regret_is_caught(journey):
    for statement in (logarithmic_regret, regret_by_moments):
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
    if statement in STRONG:
        faster = {"mu": 3 * journey.mu, "step_sizes": journey.step_sizes / 3}
        assert "more than the curvature" in statement(replace(journey, **faster)).why


def test_regret_from_the_optimum_is_flat_in_the_tokens():
    """Errata 10: begun at p* = 0 it is the same for every T, while the paper's bound grows as T."""
    few, many = (
        run_descents(Expected(Uniform(8), 2, num_tokens=T), rounds=200, seeds=60) for T in (64, 256)
    )
    assert many.collapse / many.mu == pytest.approx(4 * few.collapse / few.mu, rel=1e-6)
    errors = np.hypot(few.regret[1], many.regret[1])
    assert abs(few.regret[0] - many.regret[0]) < 4 * errors + 0.1 * few.regret[0]


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
