"""The expected dual of recorded tokens, beside exact laws, finite differences and the solver."""

import numpy as np
import pytest

from equipoise.expected.dual import Expected
from equipoise.expected.empirical import BoundaryPairs, EmpiricalDual
from equipoise.expected.laws import Beta

LAW = Beta(np.linspace(2, 4, 6), 3)
SHIFT = np.linspace(-0.05, 0.05, 6)


@pytest.fixture(scope="module")
def scores():
    return LAW.sample(np.random.default_rng(0), 60_000)


def test_many_tokens_of_a_law_have_its_quantities(scores):
    exact, found = (each.at(SHIFT) for each in (Expected(LAW, 2, 48), EmpiricalDual(scores, 2, 48)))
    np.testing.assert_allclose(found.selection_probability, exact.selection_probability, atol=0.01)
    assert found.dual == pytest.approx(exact.dual, rel=0.01)
    assert found.variance == pytest.approx(exact.variance, rel=0.02)
    assert found.second_moment == pytest.approx(exact.second_moment, rel=0.1)


def test_the_density_of_ties_is_the_boundary_weight(scores):
    pairs = BoundaryPairs.of(scores + SHIFT, 2)
    found, exact = pairs.weight(6, pairs.usual_reach), Expected(LAW, 2).boundary_weight(SHIFT)
    assert np.abs(found - exact).max() < 0.15 * exact.max()
    assert found.sum() == pytest.approx(exact.sum(), rel=0.05)
    direction = np.arange(6.0)
    laplacian = np.diag(found.sum(1)) - found
    curvature = pairs.curvatures(direction, pairs.usual_reach).mean()
    assert curvature == pytest.approx(direction @ laplacian @ direction, rel=1e-12)


def test_the_gradient_is_the_slope_of_the_dual(scores):
    empirical, step = EmpiricalDual(scores[:600], 2, 7), 1e-7
    point = empirical.at(SHIFT)
    for k in range(6):
        ahead, behind = (empirical.dual(SHIFT + sign * step * np.eye(6)[k]) for sign in (1, -1))
        assert (ahead - behind) / (2 * step) == pytest.approx(point.gradient[k], abs=1e-3)


def test_no_shift_is_below_the_minimiser(scores):
    empirical = EmpiricalDual(scores[:600], 2, 600)
    best = empirical.minimiser()
    lowest = empirical.dual(best)
    assert best.sum() == pytest.approx(0, abs=1e-9)
    for seed in range(50):
        away = np.random.default_rng(seed).normal(size=6) * 10.0 ** -(seed % 5)
        assert empirical.dual(best + away) >= lowest - 1e-9


def test_exact_ties_have_no_density():
    assert EmpiricalDual(np.full((64, 4), 0.5), 2).convexity_modulus(np.zeros(4)) == 0


def test_a_rare_expert_is_joined_by_wider_ties(scores):
    """No token is nearly tied between the last expert and another: the dual still curves there."""
    rare = scores[:2000].copy()
    rare[:, 5] = np.sort(rare[:, :5], 1)[:, -2] - 0.1
    empirical = EmpiricalDual(rare, 2, 48)
    pairs = BoundaryPairs.of(rare, 2)
    assert pairs.weight(6, pairs.usual_reach)[5].sum() == 0
    assert empirical.convexity_modulus(np.zeros(6)) > 1
