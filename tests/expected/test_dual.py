"""The expected dual and its derivatives: known constants, and how they relate to each other."""

import numpy as np
import pytest

from equipoise.expected.dual import (
    Expected,
    attained_least_weight,
    certified_least_weight,
    laplacian,
)
from equipoise.expected.laws import Beta, Histogram, TruncatedNormal, Uniform

RNG = np.random.default_rng(5)
LAWS = {
    "uniform": Uniform(7),
    "beta": Beta(np.linspace(1, 5, 7), np.linspace(3, 2, 7)),
    "truncated normal": TruncatedNormal(np.linspace(-0.2, 0.9, 7), np.linspace(0.1, 1, 7)),
    "histogram": Histogram(RNG.integers(1, 9, (7, 5)), [0.1, 0.2, 0.4, 0.5, 0.8, 0.9]),
}
SHIFT = np.array([0.05, -0.1, 0.0, 0.12, -0.03, 0.02, -0.06])


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_laws_are_laws(law):
    """Densities integrate to their distribution functions, which with their complements are 1, and
    quantiles invert them.
    """
    x = np.linspace(-0.2, 1.2, 28001)[:, None] * np.ones(7)
    integral = np.cumsum(law.density((x[1:] + x[:-1]) / 2), 0) * 5e-5
    assert np.abs(integral - law.below(x[1:])).max() < 2e-3
    np.testing.assert_allclose(law.below(x) + law.above(x), 1, atol=1e-14)
    np.testing.assert_allclose(law.below(law.quantile(0.8)), 0.8, atol=1e-9)
    sample = law.sample(np.random.default_rng(0), 40_000)
    np.testing.assert_allclose((sample <= law.quantile(0.8)).mean(0), 0.8, atol=0.01)


@pytest.mark.parametrize("top_k", range(1, 8))
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_probabilities_add_up(law, top_k):
    probability = Expected(law, top_k).selection_probability(SHIFT)
    assert probability.sum() == pytest.approx(top_k, abs=1e-9)
    assert (probability >= 0).all()
    assert (probability <= 1 + 1e-9).all()


@pytest.mark.parametrize("top_k", [1, 3, 6])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_derivatives_agree(law, top_k):
    """f' = T pi - L and pi' = Laplacian(w), against central differences."""
    expected, h = Expected(law, top_k, num_tokens=10, tolerance=1e-13), 1e-4
    slopes, curves = [], []
    for step in np.eye(7) * h:
        up, down = expected.at(SHIFT + step), expected.at(SHIFT - step)
        slopes.append((up.dual - down.dual) / (2 * h))
        curves.append((up.selection_probability - down.selection_probability) / (2 * h))
    np.testing.assert_allclose(expected.at(SHIFT).gradient, slopes, atol=2e-6)
    np.testing.assert_allclose(expected.selection_gradient(SHIFT), np.array(curves).T, atol=2e-3)


@pytest.mark.parametrize("top_k", [1, 2, 5, 7])
def test_alike_uniform_experts(top_k):
    """w_kl = 1/(E-1) at p = 0 for every K (errata 9), so the modulus is T E/(E-1)."""
    expected = Expected(Uniform(8), top_k, num_tokens=16)
    weight = expected.boundary_weight(np.zeros(8))
    np.testing.assert_allclose(weight, (1 - np.eye(8)) / 7, atol=1e-12)
    assert expected.convexity_modulus(np.zeros(8)) == pytest.approx(16 * 8 / 7, rel=1e-12)


def test_no_curvature_if_all_are_chosen():
    expected = Expected(Uniform(4), 4)
    assert not expected.boundary_weight(np.zeros(4)).any()
    np.testing.assert_allclose(expected.selection_probability(np.zeros(4)), 1)
    with pytest.raises(ValueError, match="K = E"):
        expected.minimiser()


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_the_minimiser_balances(law):
    expected = Expected(law, 3, num_tokens=50)
    best = expected.minimiser()
    assert best.sum() == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(expected.selection_probability(best), 3 / 7, atol=1e-9)
    assert expected.dual(best) < expected.dual(best + 0.01 * np.array([1, -1, 0, 0, 0, 0, 0]))


def test_a_far_minimiser_is_found():
    """Experts whose scores hardly overlap."""
    expected = Expected(TruncatedNormal([0.05, 0.5, 0.95], 0.03), 1)
    np.testing.assert_allclose(
        expected.selection_probability(expected.minimiser()), 1 / 3, atol=1e-9
    )


def test_c_k_is_extremely_small():
    """Errata 9, at E = 64 and K = 6: 6e-3 at kappa = .9, 1e-14 at kappa = .5."""
    assert attained_least_weight(Uniform(64), 6, kappa=0.9) == pytest.approx(6e-3, rel=0.05)
    assert attained_least_weight(Uniform(64), 6, kappa=0.5) == pytest.approx(1.3e-14, rel=0.05)


@pytest.mark.parametrize("kappa", [0.9, 0.5, 0.3, 0.1])
def test_c_k_has_a_positive_lower_bound(kappa):
    """Of like uniform experts it is kappa^(E-1) / (E - 1), however small; and below a weight that
    is attained.
    """
    certified = certified_least_weight(Uniform(64), 6, kappa)
    assert certified == pytest.approx(kappa**63 / 63, rel=1e-9)
    assert 0 < certified <= attained_least_weight(Uniform(64), 6, kappa)


def test_of_shifts_of_no_diameter_the_bound_is_the_weight():
    assert certified_least_weight(Uniform(8), 2, 1.0) == pytest.approx(1 / 7, rel=1e-12)


BOUNDED = {
    "beta": Beta(np.linspace(2, 4, 5), 2),
    "normal": TruncatedNormal(np.linspace(0.4, 0.6, 5), 0.3),
    "histogram": Histogram(np.random.default_rng(0).integers(1, 9, (5, 6)), np.linspace(0, 1, 7)),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_no_shift_has_less_weight_than_c_k(name):
    law, rng = BOUNDED[name], np.random.default_rng(0)
    least = certified_least_weight(law, 2, kappa=0.4)
    attained = attained_least_weight(law, 2, kappa=0.4)
    assert 0 < least <= attained
    for _ in range(60):
        shift = rng.uniform(0, 0.6, 5) if rng.random() < 0.5 else 0.6 * rng.integers(0, 2, 5)
        weight = Expected(law, 2, tolerance=1e-7).boundary_weight(shift)
        found = weight[~np.eye(5, dtype=bool)].min()
        assert found >= least * (1 - 1e-6)
        if name != "histogram":
            assert found >= attained * (1 - 1e-6)


def test_a_gap_in_a_density_leaves_no_lower_bound():
    gap = Histogram([[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]], np.linspace(0, 1, 5))
    assert not gap.positive_density
    assert certified_least_weight(gap, 1, kappa=0.4) == 0


def test_routing_sees_no_constant():
    expected = Expected(LAWS["beta"], 2)
    here, there = expected.at(SHIFT), expected.at(SHIFT + 3.7)
    np.testing.assert_allclose(here.selection_probability, there.selection_probability, atol=1e-10)
    np.testing.assert_allclose(here.boundary_weight, there.boundary_weight, atol=1e-10)
    assert here.dual == pytest.approx(there.dual, abs=1e-9)


def test_tolerance_is_kept():
    exact = Expected(LAWS["beta"], 2, tolerance=1e-15).at(SHIFT)
    for tolerance in (1e-4, 1e-7, 1e-10):
        rough = Expected(LAWS["beta"], 2, tolerance=tolerance).at(SHIFT)
        assert np.abs(rough.selection_probability - exact.selection_probability).max() <= tolerance
        assert np.abs(rough.boundary_weight - exact.boundary_weight).max() <= tolerance


def test_running_out_of_panels_is_reported():
    rough = Histogram(np.random.default_rng(0).integers(0, 9, (24, 60)), np.linspace(0, 1, 61))
    shift = np.random.default_rng(1).normal(size=24) * 0.1
    assert Expected(rough, 2, tolerance=1e-14).at(shift).error > 1e-12
    assert Expected(LAWS["beta"], 2).at(SHIFT).error < 1e-10


def test_many_experts_keep_their_digits():
    """E = 256, K = 8, all experts different: probabilities add up, and agree with a finer grid."""
    rng = np.random.default_rng(0)
    law = Beta(rng.uniform(3, 8, 256), rng.uniform(3, 8, 256))
    shift = rng.normal(size=256) * 0.05
    point, finer = Expected(law, 8).at(shift), Expected(law, 8, tolerance=1e-14).at(shift)
    assert point.selection_probability.sum() == pytest.approx(8, abs=1e-9)
    assert np.abs(point.selection_probability - finer.selection_probability).max() < 1e-10
    assert np.abs(point.boundary_weight - finer.boundary_weight).max() < 1e-10


def test_laplacians_have_no_row_sums():
    np.testing.assert_allclose(
        laplacian(Expected(LAWS["uniform"], 2).boundary_weight(SHIFT)).sum(1), 0, atol=1e-15
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Beta(0.5, 2), "not bounded"),
        (lambda: TruncatedNormal(0.5, 0), "std must be positive"),
        (lambda: TruncatedNormal(9, 0.1), "almost nothing in"),
        (lambda: Histogram([[1, 2]], [0, 1]), "counts are"),
        (lambda: Histogram([[1, 2]], [0, 1, 2]), "edges must too"),
        (lambda: Histogram([[1, 2], [0, 0]], [0, 0.5, 1]), "every expert needs some counts"),
        (lambda: Expected(Uniform(3), 4), "impossible"),
        (lambda: Expected(Uniform(3), 2).at([0, 0]), "must be 3 finite numbers"),
    ],
)
def test_wrong_laws_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
