"""The Triton kernels in Triton's interpreter against the reference. Not collected by itself:
test_triton.py runs it in a process that has triton and TRITON_INTERPRET=1.
"""

import pytest
import torch

import equipoise
from equipoise import kernels, route, score_function
from equipoise.routing.kernels.from_logits import choose_experts
from equipoise.routing.kernels.gpu.launch import sorting_network
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


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus"])
@pytest.mark.parametrize(("T", "E", "K"), [(0, 8, 2), (21, 8, 3), (12, 60, 6), (5, 256, 8)])
def test_gates_from_logits_are_those_of_torch(T, E, K, score):
    logits, shift, mask = case(T, E, torch.float32, 0)
    logits = logits * 4
    if T:
        # where softplus underflows and where everything saturates
        logits[0, :3] = torch.tensor([-120.0, -20.0, 90.0])
    slow, fast = both(lambda: choose_experts(logits, shift, mask, score, K, K + 1))
    torch.testing.assert_close(fast.values, slow.values, rtol=2e-6, atol=2e-6)
    # gates are those of the experts it chose itself
    gates = score_function(score)(logits).gather(1, fast.experts[:, :K])
    torch.testing.assert_close(fast.gates, gates, rtol=1e-5, atol=0)
    assert fast.loads.sum() == K * int((~mask).sum())
    # the same experts wherever rounding cannot decide
    values = slow.values
    clear = ((values[:, :-1] - values[:, 1:]) > 1e-5).all(1)
    assert torch.equal(fast.experts[clear], slow.experts[clear])


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 12])
def test_the_network_sorts_every_column_of_zeros_and_ones(length):
    """Knuth 5.3.4, theorem Z: then it sorts everything."""
    network = sorting_network(length)
    for number in range(1 << length):
        column = [number >> place & 1 for place in range(length)]
        for upper, lower in zip(network[::2], network[1::2], strict=True):
            assert upper < lower
            if column[lower] > column[upper]:
                column[upper], column[lower] = column[lower], column[upper]
        assert column == sorted(column, reverse=True)


@pytest.mark.parametrize("length", [28, 32])
def test_a_long_network_sorts(length):
    network, columns = sorting_network(length), torch.rand(500, length)
    expected = columns.sort(1, descending=True).values
    for upper, lower in zip(network[::2], network[1::2], strict=True):
        one, other = columns[:, upper].clone(), columns[:, lower].clone()
        columns[:, upper], columns[:, lower] = torch.maximum(one, other), torch.minimum(one, other)
    assert torch.equal(columns, expected)
