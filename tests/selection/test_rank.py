"""Ranking against a stable sort, which puts the lowest of equals first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.selection import rank
from equipoise.selection.rank import rank_experts


def by_sorting(scores, shift, wanted):
    shifted = scores + shift
    order = np.argsort(-shifted, axis=1, kind="stable")[:, :wanted]
    return np.take_along_axis(shifted, order, 1), order


@st.composite
def cases(draw):
    experts = draw(st.one_of(st.integers(1, 70), st.integers(64, 300)))
    tokens = draw(st.integers(0, 200))
    top_k = draw(st.integers(1, min(experts, 40)))
    wanted = min(top_k + draw(st.integers(0, 1)), experts)
    levels = draw(st.sampled_from([0, 1, 2, 5, 256]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = random.normal(size=(tokens, experts)) * 10.0 ** draw(st.integers(-40, 20))
    if levels:
        scores = np.round(random.normal(size=(tokens, experts)) * levels) / levels
    shift = np.round(random.normal(size=experts), draw(st.sampled_from([0, 9])))
    return scores.astype(np.float32), shift.astype(np.float32), top_k, wanted


@given(cases())
@settings(deadline=None)  # the first call may compile
def test_order_values_and_loads_are_those_of_a_stable_sort(case):
    scores, shift, top_k, wanted = case
    values, order = by_sorting(scores, shift, wanted)
    found = rank_experts(scores, shift, top_k, wanted)
    assert np.array_equal(found.experts, order)
    assert np.array_equal(found.values, values)
    counts = np.bincount(order[:, :top_k].ravel(), minlength=scores.shape[1])
    assert np.array_equal(found.loads, counts)


@given(cases(), st.integers(0, 2**32))
@settings(deadline=None)
def test_padding_is_ranked_but_not_counted(case, seed):
    scores, shift, top_k, wanted = case
    mask = np.random.default_rng(seed).random(len(scores)) < 0.5
    found, all_ = (
        rank_experts(scores, shift, top_k, wanted, mask),
        rank_experts(scores, shift, top_k, wanted),
    )
    assert np.array_equal(found.experts, all_.experts)
    kept = all_.experts[~mask, :top_k].ravel()
    assert np.array_equal(found.loads, np.bincount(kept, minlength=scores.shape[1]))


def test_zeros_of_both_signs_are_equal():
    scores = np.array([[-0.0, 0.0, -0.0]], np.float32)
    assert rank_experts(scores, np.zeros(3, np.float32), 3, 3).experts.tolist() == [[0, 1, 2]]


def test_infinities_keep_their_place():
    scores = np.array([[1, -np.inf, np.inf, -np.inf, 2]], np.float32)
    found = rank_experts(scores, np.zeros(5, np.float32), 5, 5)
    assert found.experts.tolist() == [[2, 4, 0, 1, 3]]
    assert found.values.tolist() == [[np.inf, 2, 1, -np.inf, -np.inf]]


def test_nan_ranks_first_and_stays_an_index():
    scores = np.array([[1, np.nan, 2, -np.nan]], np.float32)
    found = rank_experts(scores, np.zeros(4, np.float32), 2, 3)
    assert found.experts.tolist() == [[1, 3, 2]]
    assert np.isinf(found.values[0, :2]).all()


def test_nan_and_infinities_among_many_experts():
    """They rank as among few, wherever they stand."""
    random = np.random.default_rng(0)
    scores = random.normal(size=(200, 131)).astype(np.float32)
    odd = random.random(scores.shape)
    scores[odd < 0.3] = -np.inf
    scores[odd > 0.99] = np.inf
    scores[odd > 0.995] = np.nan
    scores[::7] = -np.inf
    # NaN is above all numbers, as infinity is
    order = np.argsort(-np.where(np.isnan(scores), np.inf, scores), axis=1, kind="stable")
    found = rank_experts(scores, np.zeros(131, np.float32), 5, 6)
    assert np.array_equal(found.experts, order[:, :6])


def test_the_smallest_and_the_largest_floats_are_kept_apart():
    most, least = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal
    scores = np.array([[0, least, -least, most, -most]], np.float32)
    found = rank_experts(scores, np.zeros(5, np.float32), 5, 5)
    assert found.experts.tolist() == [[3, 1, 0, 2, 4]]
    assert np.array_equal(found.values[0], np.sort(scores[0])[::-1])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(monkeypatch, threads):
    monkeypatch.setattr(rank, "_MIN_PART_SCORES", 64)
    random = np.random.default_rng(0)
    scores = np.round(random.random((1001, 12), np.float32), 1)
    shift = random.random(12, np.float32)
    one = rank_experts(scores, shift, 3, 4, threads=1)
    several = rank_experts(scores, shift, 3, 4, threads=threads)
    assert all(np.array_equal(left, right) for left, right in zip(one, several, strict=True))
