"""Probabilities and boundary weights against the paper's sums, and against drawn tokens."""

from itertools import combinations

import numpy as np
import pytest

from equipoise.expected.dual import Expected
from equipoise.expected.laws import Beta, Histogram, TruncatedNormal, Uniform
from equipoise.optimum.loop import choose_top_k

SHIFT = np.array([0.05, -0.1, 0.0, 0.12, -0.03, 0.02])


def laws(experts):
    return [
        Uniform(experts),
        Beta(np.linspace(2, 5, experts), 3),
        TruncatedNormal(np.linspace(0.2, 0.6, experts), 0.2),
        Histogram.of(np.random.default_rng(1).beta(2, 3, (500, experts)), bins=8),
    ]


def by_subsets(law, shift, top_k):
    """Prop. 14's proof, literally: sums over sets of experts above v, by trapezoids, sharing
    nothing with our quadrature.
    """
    E = law.num_experts
    v = np.linspace(-0.2, 1.2, 20_001)
    phi, below, above = (each(v[:, None] - shift) for each in (law.density, law.below, law.above))

    def exactly(r, out):
        others = [j for j in range(E) if j not in out]
        terms = (
            np.prod(
                [above[:, j] if j in chosen else below[:, j] for j in others] or [np.ones_like(v)],
                axis=0,
            )
            for chosen in combinations(others, r)
        )
        return sum(terms, np.zeros_like(v))

    pi = [np.trapezoid(phi[:, k] * sum(exactly(r, {k}) for r in range(top_k)), v) for k in range(E)]
    w = np.zeros((E, E))
    for k, other in combinations(range(E), 2):
        w[k, other] = w[other, k] = np.trapezoid(
            phi[:, k] * phi[:, other] * exactly(top_k - 1, {k, other}), v
        )
    return np.array(pi), w


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("law", laws(6), ids=lambda law: type(law).__name__)
def test_the_papers_sums_over_subsets(law, top_k):
    pi, w = by_subsets(law, SHIFT, top_k)
    point = Expected(law, top_k).at(SHIFT)
    np.testing.assert_allclose(point.selection_probability, pi, atol=3e-4)
    np.testing.assert_allclose(point.boundary_weight, w, atol=2e-3)


@pytest.mark.parametrize("law", laws(12), ids=lambda law: type(law).__name__)
def test_drawn_tokens(law):
    """Loads of 400,000 tokens, and how many are near the boundary of each pair of experts."""
    top_k, tokens, h = 3, 400_000, 0.02
    shift = np.tile(SHIFT, 2)
    point = Expected(law, top_k).at(shift)
    shifted = law.sample(np.random.default_rng(0), tokens) + shift
    spread = np.sqrt(point.selection_probability * (1 - point.selection_probability) / tokens)
    share = choose_top_k(shifted, top_k).mean(0)
    assert (np.abs(share - point.selection_probability) < 5 * spread).all()
    order = np.argsort(-shifted, 1)[:, top_k - 1 : top_k + 1]
    near = np.take_along_axis(shifted, order, 1)
    pairs = order[near[:, 0] - near[:, 1] < h]
    counts = np.zeros((12, 12))
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    weight = (counts + counts.T) / (2 * h * tokens)
    # h leaves a bias of that order
    np.testing.assert_allclose(weight.sum(), point.boundary_weight.sum(), rtol=0.15)
    assert np.corrcoef(weight.ravel(), point.boundary_weight.ravel())[0, 1] > 0.95


def test_the_expected_dual_is_the_mean_of_duals():
    law, shift, top_k, tokens = Beta(np.linspace(2, 5, 6), 3), SHIFT, 2, 100_000
    scores = law.sample(np.random.default_rng(0), tokens)
    shifted = scores + shift
    per_token = np.where(choose_top_k(shifted, top_k), shifted, 0).sum(1) - top_k / 6 * shift.sum()
    error = 5 * per_token.std() / np.sqrt(tokens)
    assert abs(per_token.mean() - Expected(law, top_k).dual(shift)) < error
