"""One update on fixed scores: its margins, and the hypothesis that it is DeepSeek's step."""

import numpy as np
import pytest

from equipoise.theorems.evidence.hypotheses import deepseek_rate
from equipoise.theorems.evidence.steps import threshold_margins
from equipoise.theorems.verdict import HypothesisError
from tests.theorems.cases import lone_token


@pytest.mark.parametrize(("experts", "top_k"), [(4, 1), (9, 2), (9, 7), (64, 6), (64, 60)])
def test_margins_are_those_of_sorted_scores(experts, top_k):
    shifted = np.random.default_rng(0).normal(size=(200, experts))
    best_first = -np.sort(-shifted, axis=1)
    np.testing.assert_array_equal(
        threshold_margins(shifted, top_k), best_first[:, top_k - 1] - best_first[:, top_k]
    )


def deepseek_step(off, u, rounding=1e-6):
    """Shifts moved by u, those of experts 0 and 1 by `off` more and less."""
    moved = u * np.array([-1.0, -1.0, 1.0, 1.0]) + off * np.array([1.0, -1.0, 0.0, 0.0])
    return lone_token([1.0, 1.1, 0.4, 0.5], moved, rounding=rounding)


def test_shifts_may_be_off_by_four_roundings():
    assert deepseek_rate(deepseek_step(3.5e-6, u=1e-3)) == pytest.approx(1e-3)
    with pytest.raises(HypothesisError, match="not all by one u"):
        deepseek_rate(deepseek_step(4.5e-6, u=1e-3))


def test_a_rate_within_four_roundings_is_none():
    assert deepseek_rate(deepseek_step(0.0, u=4.5e-6)) == pytest.approx(4.5e-6)
    with pytest.raises(HypothesisError, match="not all by one u"):
        deepseek_rate(deepseek_step(0.0, u=3.5e-6))
