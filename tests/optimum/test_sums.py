"""The sums that the proof of an optimum rests on."""

import numpy as np
import pytest

from equipoise.optimum.sums import largest_size, value_and_best
from tests.optimum.problems import softmax_scores


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_sums_are_of_the_true_top_k(kind):
    scores = softmax_scores(500, 9, dtype=kind)
    shift = np.linspace(-0.1, 0.1, 9)
    # no top-K at all
    wrong = np.tile(np.arange(3), (500, 1))
    value, best = value_and_best(scores, shift, wrong)
    assert value == pytest.approx(scores[:, :3].sum(dtype=np.float64), rel=1e-12)
    assert best == pytest.approx(np.sort(scores + shift, axis=1)[:, -3:].sum(), rel=1e-12)


def test_one_better_expert_left_out_is_noticed():
    """Chosen in float32 two experts are equal to the third; in float64 the third is better."""
    scores, shift = np.ones((10, 4), np.float32), np.array([0, 0, 0, 1e-8])
    _, best = value_and_best(scores, shift, np.tile([0, 1], (10, 1)))
    assert best == pytest.approx(10 * (2 + 1e-8), rel=1e-15)


def test_what_an_addition_loses_is_not_lost():
    """A million times 0.1 beside one huge score: plain float64 sums would lose digits."""
    scores = np.full((100_000, 1), 0.1)
    scores[0] = 1e12
    value, _ = value_and_best(scores, np.zeros(1), np.zeros((100_000, 1), np.int64))
    assert value == pytest.approx(1e12 + 0.1 * 99_999, rel=1e-16, abs=2e-4)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_no_size_is_larger_than_one_that_is_no_number(wrong):
    scores = softmax_scores(50, 4)
    assert largest_size(scores) == scores.max()
    scores[20, 2] = wrong
    assert largest_size(scores) == np.inf
