"""Group-limited routing: a token uses only its best groups, whatever the sign of its shifted
scores.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import Groups, route

NUM_EXPERTS = 12


def slow_route(row, number, keep):
    """The slow twin: allowed groups, and all allowed experts from best to worst."""
    size = len(row) // number
    members = [range(g * size, (g + 1) * size) for g in range(number)]
    worth = [sum(sorted(row[e] for e in group)[-2:]) for group in members]
    best = sorted(range(number), key=lambda g: -worth[g])[:keep]
    order = sorted((e for g in best for e in members[g]), key=lambda e: -row[e])
    return [g in best for g in range(number)], order


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
