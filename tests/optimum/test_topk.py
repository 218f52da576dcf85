"""Kernels against a stable sort, which puts the lowest of equals first."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.optimum import topk
from tests.optimum.problems import softmax_scores


def by_sorting(scores, shift, top_k):
    shifted = scores + shift.astype(scores.dtype)
    order = np.argsort(-shifted, axis=1, kind="stable")
    return order[:, :top_k], order[:, top_k], shifted


@st.composite
def cases(draw):
    experts = draw(st.one_of(st.integers(2, 40), st.integers(150, 300)))
    tokens = draw(st.integers(1, 200))
    top_k = draw(st.integers(1, min(experts - 1, 40)))
    levels = draw(st.sampled_from([0, 1, 2, 5, 256]))
    kind = draw(st.sampled_from([np.float32, np.float64]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = random.random((tokens, experts))
    if levels:
        scores = np.floor(scores * levels) / levels
    shift = np.round(random.normal(size=experts), draw(st.sampled_from([0, 9])))
    return scores.astype(kind), shift, top_k


@given(cases())
@settings(deadline=None)  # the first call may compile
def test_one_pass_agrees_with_sorting(case):
    scores, shift, top_k = case
    experts, runner_up, shifted = by_sorting(scores, shift, top_k)
    seen = topk.boundary_under(scores, shift, top_k)
    assert np.array_equal(seen.loads, np.bincount(experts.ravel(), minlength=scores.shape[1]))
    assert np.array_equal(seen.kth, experts[:, -1])
    assert np.array_equal(seen.runner_up, runner_up)
    rows = np.arange(len(scores))
    assert np.array_equal(seen.margin, shifted[rows, experts[:, -1]] - shifted[rows, runner_up])
    assert np.isclose(
        seen.value, np.take_along_axis(shifted, experts, 1).sum(dtype=np.float64), rtol=1e-6
    )
    assert np.array_equal(topk.top_k_loads(scores, shift, top_k), seen.loads)
    assert np.array_equal(topk.choice_under(scores, shift, top_k), experts)


@given(cases(), st.data())
@settings(deadline=None)
def test_a_list_of_tokens_is_those_rows(case, data):
    scores, shift, top_k = case
    tokens = np.array(data.draw(st.lists(st.integers(0, len(scores) - 1), min_size=1)))
    seen, alone = (
        topk.boundary_under(scores, shift, top_k, tokens),
        topk.boundary_under(scores[tokens], shift, top_k),
    )
    assert all(np.array_equal(a, b) for a, b in zip(seen, alone))
    assert np.array_equal(
        topk.choice_under(scores, shift, top_k, tokens),
        topk.choice_under(scores[tokens], shift, top_k),
    )


def test_parts_add_up():
    scores = softmax_scores(3 * 4096 + 17, 12)
    whole = topk.boundary_under(scores, np.zeros(12), 3)
    pieces = [
        topk.boundary_under(scores[start : start + 1000], np.zeros(12), 3)
        for start in range(0, len(scores), 1000)
    ]
    assert np.array_equal(whole.loads, sum(piece.loads for piece in pieces))
    assert np.array_equal(whole.margin, np.concatenate([piece.margin for piece in pieces]))


def test_two_threads_may_call_at_once():
    scores = softmax_scores(20000, 16)
    expected = topk.top_k_loads(scores, np.zeros(16), 2)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: topk.top_k_loads(scores, np.zeros(16), 2), range(12)))
    assert all(np.array_equal(answer, expected) for answer in answers)
