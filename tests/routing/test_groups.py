"""Group-limited routing: a token uses only its best groups, whatever the sign of its shifted
scores.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import Groups, route

NUM_EXPERTS = 12


def slow_route(row, number, keep, best=2):
    """The slow twin: allowed groups, and all allowed experts from best to worst."""
    size = len(row) // number
    members = [range(g * size, (g + 1) * size) for g in range(number)]
    worth = [sum(sorted(row[e] for e in group)[-best:]) for group in members]
    kept = sorted(range(number), key=lambda g: -worth[g])[:keep]
    order = sorted((e for g in kept for e in members[g]), key=lambda e: -row[e])
    return [g in kept for g in range(number)], order


@st.composite
def grouped(draw):
    """Rows of 2^i - offset in any order: no two experts and no two sums of two are equal, so there
    are no ties.
    """
    number, keep = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (3, 2), (4, 2), (6, 3), (12, 5)]))
    top_k = draw(st.integers(1, keep * NUM_EXPERTS // number))
    offset = draw(st.sampled_from([0, 50, 5000]))  # none, some or all are negative
    rows = draw(
        st.lists(
            st.permutations([2**i - offset for i in range(NUM_EXPERTS)]), min_size=1, max_size=4
        )
    )
    return rows, top_k, number, keep


@settings(deadline=None, max_examples=80)
@given(grouped())
def test_groups_agree_with_slow_twin(case):
    rows, top_k, number, keep = case
    shifted = torch.tensor(rows, dtype=torch.float32)
    routing = route(torch.ones_like(shifted), top_k, choose_by=shifted, groups=(number, keep))
    for token, row in enumerate(rows):
        allowed, order = slow_route(row, number, keep)
        assert routing.allowed[token].tolist() == allowed
        assert routing.experts[token].tolist() == order[:top_k]
        if top_k == len(order):
            assert routing.margin[token] == torch.inf
        else:
            assert routing.runner_up[token] == order[top_k]
            assert routing.margin[token] == row[order[top_k - 1]] - row[order[top_k]]


def test_a_group_may_be_worth_its_best_or_its_best_three():
    """DeepSeek-V2 takes the best expert of a group, Megatron as many as top_k / keep."""
    shifted = torch.rand(64, NUM_EXPERTS, generator=torch.Generator().manual_seed(0))
    allowed = {}
    for best in (1, 2, 3, 9):
        routing = route(torch.ones_like(shifted), 3, choose_by=shifted, groups=Groups(3, 2, best))
        allowed[best] = routing.allowed
        for token, row in enumerate(shifted.tolist()):
            assert routing.allowed[token].tolist() == slow_route(row, 3, 2, best)[0]
    assert not torch.equal(allowed[1], allowed[2])
    with pytest.raises(ValueError, match="sum of its 0 highest"):
        route(shifted, 3, groups=Groups(3, 2, 0))


def test_negative_scores_stay_in_groups():
    shifted = torch.tensor([[-9.0, -8.0, -1.0, -2.0]])
    routing = route(torch.rand(1, 4), 1, choose_by=shifted, groups=(2, 1))
    assert routing.allowed.tolist() == [[False, True]]
    assert routing.experts.tolist() == [[2]]
    assert routing.runner_up.tolist() == [3]


def test_group_worth_sums_two_best():
    shifted = torch.tensor([[9.0, 0.0, 0.0, 5.0, 5.0, 0.0], [4.0, 4.0, 4.0, 5.0, 5.0, 0.0]])
    routing = route(torch.rand(2, 6), 1, choose_by=shifted, groups=(2, 1))
    assert routing.allowed.tolist() == [[False, True], [False, True]]


def test_runner_up_stays_in_groups():
    # expert 2 is second best, and its group forbidden
    shifted = torch.tensor([[9.0, 1.0, 8.0, 0.0]])
    routing = route(torch.rand(1, 4), 1, choose_by=shifted, groups=(2, 1))
    assert routing.runner_up.tolist() == [1]
    assert routing.margin.tolist() == [8.0]


def test_exhausted_groups_have_no_runner_up():
    routing = route(torch.rand(5, 8), 4, groups=(4, 2))
    assert routing.margin.tolist() == [torch.inf] * 5


def test_equal_groups_keep_exact_number():
    routing = route(torch.zeros(5, 12), 2, groups=(6, 3))
    assert routing.allowed.sum(1).tolist() == [3] * 5
    inside = routing.allowed.gather(1, routing.experts // 2)
    assert inside.all()


def test_groups_name_their_numbers():
    scores = torch.rand(20, 12)
    named, plain = (
        route(scores, 2, groups=Groups(number=6, keep=2)),
        route(scores, 2, groups=(6, 2)),
    )
    assert torch.equal(named.experts, plain.experts)
    assert plain.allowed.shape == (20, 6)
    assert route(scores, 2).allowed is None


def slow_group_margin(row, number, keep):
    """How far each group is from being dropped (kept ones) or kept (the others, negative)."""
    size = len(row) // number
    worth = [sum(sorted(row[g * size : (g + 1) * size])[-2:]) for g in range(number)]
    order = sorted(worth, reverse=True)
    first_left_out = order[keep] if keep < number else -torch.inf
    return [w - (first_left_out if w >= order[keep - 1] else order[keep - 1]) for w in worth]


@settings(deadline=None, max_examples=40)
@given(grouped())
def test_group_margins_agree_with_slow_twin(case):
    rows, top_k, number, keep = case
    shifted = torch.tensor(rows, dtype=torch.float32)
    routing = route(torch.ones_like(shifted), top_k, choose_by=shifted, groups=(number, keep))
    expected = [slow_group_margin(row, number, keep) for row in rows]
    assert routing.group_margin.tolist() == expected


def test_a_group_that_cannot_be_dropped_is_infinitely_far_from_it():
    routing = route(torch.rand(3, 4), 1, groups=(2, 2))
    assert routing.group_margin.tolist() == [[torch.inf] * 2] * 3
