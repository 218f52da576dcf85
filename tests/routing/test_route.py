"""route: who is chosen, what the gates are, what is counted."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import route


def random_scores(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


@st.composite
def tables(draw):
    """Rows of small whole numbers, so that ties are common, and a K that fits."""
    num_experts = draw(st.integers(1, 9))
    row = st.lists(st.integers(-3, 3), min_size=num_experts, max_size=num_experts)
    rows = draw(st.lists(row, min_size=1, max_size=6))
    return torch.tensor(rows, dtype=torch.float32), draw(st.integers(1, num_experts))


def test_leading_shapes_are_flattened():
    scores, shifted = random_scores(2, 3, 5, 8), random_scores(2, 3, 5, 8, seed=1)
    mask = random_scores(2, 3, 5, seed=2) < 0.3
    deep = route(scores, 2, choose_by=shifted, groups=(4, 2), mask=mask)
    flat = route(
        scores.view(30, 8), 2, choose_by=shifted.view(30, 8), groups=(4, 2), mask=mask.view(30)
    )
    assert deep.experts.shape == deep.gates.shape == (30, 2)
    for name, one, other in zip(deep._fields, deep, flat, strict=True):
        assert torch.equal(one, other), name


def test_choose_by_decides_alone():
    scores, other = random_scores(50, 8), random_scores(50, 8, seed=1)
    routing = route(scores, 3, choose_by=other)
    assert torch.equal(routing.experts, other.argsort(1, descending=True)[:, :3])
    assert torch.equal(route(scores, 3).experts, scores.argsort(1, descending=True)[:, :3])


def test_shift_never_enters_gates():
    scores = random_scores(50, 8)
    routing = route(scores, 3, choose_by=scores + random_scores(8, seed=1))
    assert torch.equal(routing.gates, scores.gather(1, routing.experts))


@pytest.mark.parametrize("renormalize", [False, True])
def test_gradients_match_plain_gather(renormalize):
    ours, plain = (random_scores(20, 8).requires_grad_() for _ in range(2))
    shifted = (ours + random_scores(8, seed=1)).detach().requires_grad_()
    weights = random_scores(20, 3, seed=2)
    routing = route(ours, 3, choose_by=shifted, renormalize=renormalize, scale=2.5)
    (routing.gates * weights).sum().backward()
    gates = plain.gather(1, routing.experts)
    gates = gates / gates.sum(1, keepdim=True) if renormalize else gates
    (gates * 2.5 * weights).sum().backward()
    torch.testing.assert_close(ours.grad, plain.grad)
    assert shifted.grad is None
    assert not routing.margin.requires_grad


def test_renormalized_gates_sum_to_scale():
    gates = route(random_scores(20, 8), 3, renormalize=True, scale=2.5).gates
    torch.testing.assert_close(gates.sum(1), torch.full((20,), 2.5))
    plain = route(random_scores(20, 8), 3).gates
    torch.testing.assert_close(gates / gates[:, :1], plain / plain[:, :1])


def test_zero_gates_stay_zero():
    gates = route(torch.zeros(2, 4), 2, renormalize=True).gates
    assert torch.equal(gates, torch.zeros(2, 2))


@settings(deadline=None, max_examples=60)
@given(tables())
def test_choice_agrees_with_sort(table):
    values, top_k = table
    routing = route(torch.ones_like(values), top_k, choose_by=values)
    ordered = values.sort(1, descending=True).values
    assert torch.equal(values.gather(1, routing.experts), ordered[:, :top_k])
    assert all(len(set(row)) == top_k for row in routing.experts.tolist())
    if top_k == values.shape[1]:
        assert routing.margin.isposinf().all()
        return
    assert torch.equal(values.gather(1, routing.runner_up[:, None])[:, 0], ordered[:, top_k])
    assert torch.equal(routing.margin, ordered[:, top_k - 1] - ordered[:, top_k])
    assert not (routing.experts == routing.runner_up[:, None]).any()


def test_everybody_chosen_has_no_runner_up():
    routing = route(random_scores(5, 4), 4)
    assert routing.loads.tolist() == [5, 5, 5, 5]
    assert routing.margin.tolist() == [torch.inf] * 5


def test_loads_count_choices():
    routing = route(random_scores(1000, 16), 5)
    assert routing.loads.dtype == torch.int64
    assert torch.equal(routing.loads, torch.bincount(routing.experts.flatten(), minlength=16))


def test_padding_is_routed_uncounted():
    scores, mask = random_scores(40, 8), random_scores(40, seed=1) < 0.5
    masked, plain = route(scores, 3, mask=mask), route(scores, 3)
    assert torch.equal(masked.experts, plain.experts)
    assert torch.equal(masked.gates, plain.gates)
    assert torch.equal(masked.loads, route(scores[~mask], 3).loads)
    assert torch.equal(masked.mask, mask)
    assert plain.mask is None
    assert route(scores, 3, mask=torch.ones(40, dtype=torch.bool)).loads.tolist() == [0] * 8


def test_empty_batch_routes():
    routing = route(
        torch.zeros(2, 0, 8),
        3,
        groups=(4, 2),
        mask=torch.zeros(2, 0, dtype=torch.bool),
        renormalize=True,
    )
    assert routing.experts.shape == routing.gates.shape == (0, 3)
    assert routing.allowed.shape == (0, 4)
    assert routing.loads.tolist() == [0] * 8


def test_float32_shift_outlives_bf16_scores():
    scores = torch.ones(3, 8, dtype=torch.bfloat16)
    shift = torch.arange(8) * 1e-4  # in bf16, 1 + 7e-4 is 1
    routing = route(scores, 2, choose_by=scores + shift, renormalize=True)
    assert routing.experts.tolist() == [[7, 6]] * 3
    assert routing.gates.dtype == torch.bfloat16
    assert routing.gates.tolist() == [[0.5, 0.5]] * 3
    torch.testing.assert_close(routing.margin, torch.full((3,), 1e-4), rtol=1e-2, atol=0)


def test_inputs_are_left_alone():
    inputs = random_scores(20, 8), random_scores(20, 8, seed=1), random_scores(20, seed=2) < 0.5
    copies = [tensor.clone() for tensor in inputs]
    scores, shifted, mask = inputs
    route(scores, 2, choose_by=shifted, groups=(4, 2), mask=mask, renormalize=True, scale=2.5)
    assert all(map(torch.equal, inputs, copies))
    assert [tensor._version for tensor in inputs] == [0, 0, 0]


def test_runner_up_is_left_out_when_not_wanted():
    scores = torch.rand(20, 6, generator=torch.Generator().manual_seed(0))
    with_it, without = route(scores, 2), route(scores, 2, runner_up=False)
    assert without.runner_up is without.margin is None
    assert torch.equal(with_it.experts, without.experts)
    assert torch.equal(with_it.loads, without.loads)
