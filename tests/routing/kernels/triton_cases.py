"""The Triton kernels in Triton's interpreter against the reference. Not collected by itself:
test_triton.py runs it in a process that has triton and TRITON_INTERPRET=1.
"""

import pytest
import torch

import equipoise
from equipoise import kernels, route
from equipoise.routing.kernels.operators import bin_distances, rank_experts

SHAPES = [
    (0, 8, 2), (1, 8, 1), (37, 8, 8), (60, 60, 6), (33, 64, 6), (20, 100, 7), (9, 256, 8),
    (5, 896, 16), (3, 1000, 32), (2, 1024, 16), (2, 2000, 4),
]  # fmt: skip
KINDS = [torch.float32, torch.bfloat16, torch.float16]


def both(call):
    found = []
    for name in ("reference", "triton"):
        with kernels(name):
            found.append(call())
    return found


def assert_same(one, other):
    assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


def case(T, E, kind, levels):
    torch.manual_seed(T * E)
    scores = torch.randn(T, E)
    scores = (scores * levels).round() / levels if levels else scores
    return scores.to(kind), torch.randn(E) * 0.3, torch.rand(T) < 0.3


@pytest.mark.parametrize("levels", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("T", "E", "K"), SHAPES)
def test_the_choice_is_the_same(T, E, K, kind, levels):
    scores, shift, mask = case(T, E, kind, levels)
    wanted = min(K + 1, E)
    assert_same(*both(lambda: rank_experts(scores, shift, mask, K, wanted)))
    assert_same(*both(lambda: rank_experts(scores, None, None, K, K)))


@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize(("T", "E", "K"), [(37, 8, 2), (33, 60, 6), (7, 256, 8)])
def test_the_histogram_is_the_same(T, E, K, flips):
    scores, shift, mask = case(T, E, torch.float32, 16)
    routing = route(scores, K, shift=shift, mask=mask)
    scale = 32 / (torch.rand(E) + 0.05)
    for stride, padding in ((1, None), (3, mask)):
        slow, fast = both(
            lambda stride=stride, padding=padding: bin_distances(
                scores,
                shift,
                routing.runner_up,
                routing.margin,
                padding,
                scale,
                64,
                flips=flips,
                stride=stride,
            )
        )
        assert slow.sum() > 0
        assert torch.equal(slow, fast)


def test_forbidden_experts_are_not_chosen_before_others():
    scores = torch.rand(6, 12)
    scores[:, ::2] = -torch.inf
    slow, fast = both(lambda: rank_experts(scores, None, None, 6, 7))
    assert_same(slow, fast)
    assert (fast[1][:, :6] % 2 == 1).all()
    assert (fast[0][:, 6] == -torch.inf).all()


def test_groups_are_kept_alike():
    scores = (torch.rand(40, 16) * 4).round()
    slow, fast = both(lambda: route(scores, 3, groups=(4, 2)))
    assert torch.equal(slow.experts, fast.experts)
    assert torch.equal(slow.allowed, fast.allowed)


def test_nan_ranks_first_and_zeros_are_equal():
    scores = torch.tensor([[1.0, torch.nan, 2.0, -torch.nan], [-0.0, 0.0, -1.0, 0.0]])
    with kernels("triton"):
        _, experts, _ = rank_experts(scores, None, None, 2, 3)
    assert experts.tolist() == [[1, 3, 2], [0, 1, 3]]


def test_what_is_too_large_is_left_to_the_reference():
    scores = torch.rand(2, 5000)
    assert_same(*both(lambda: rank_experts(scores, None, None, 2, 3)))


@pytest.mark.parametrize("name", ["deepseek", "quantile", "curvature"])
def test_balancers_take_the_same_steps(name):
    torch.manual_seed(0)
    batches = torch.randn(4, 80, 16).softmax(-1)

    def train():
        balancer = equipoise.balancer(name, 16, top_k=3)
        for scores in batches:
            balancer.update(balancer.tally(scores, balancer.route(scores)))
        return balancer.shift

    slow, fast = both(train)
    assert slow.any()
    assert torch.equal(slow, fast)
