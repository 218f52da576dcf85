"""Every back end against the reference: experts, loads and histograms, to the last token."""

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise import kernels, route
from equipoise.routing.kernels import backends
from equipoise.routing.kernels.operators import bin_distances, rank_experts

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@st.composite
def cases(draw):
    experts = draw(st.integers(2, 40))
    tokens = draw(st.integers(0, 80))
    top_k = draw(st.integers(1, experts))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scores = torch.rand(tokens, experts, generator=rng)
    levels = draw(st.sampled_from([0, 2, 16]))
    scores = (scores * levels).round() / levels if levels else scores
    shift = torch.randn(experts, generator=rng) * draw(st.sampled_from([0.0, 0.1, 3.0]))
    mask = torch.rand(tokens, generator=rng) < 0.3 if draw(st.booleans()) else None
    return scores.to(draw(st.sampled_from(DTYPES))), shift, mask, top_k


def on_each(call):
    """What both back ends give."""
    found = []
    for name in ("reference", "processor"):
        with kernels(name):
            found.append(call())
    return found


@settings(deadline=None)
@given(cases(), st.booleans())
def test_the_choice_is_the_same(case, runner_up):
    scores, shift, mask, top_k = case
    wanted = min(top_k + runner_up, scores.shape[1])
    slow, fast = on_each(lambda: rank_experts(scores, shift, mask, top_k, wanted))
    assert all(torch.equal(one, other) for one, other in zip(slow, fast, strict=True))


@settings(deadline=None)
@given(cases(), st.booleans(), st.integers(1, 5), st.sampled_from([2, 64, 512]))
def test_the_histogram_is_the_same(case, flips, stride, bins):
    scores, shift, mask, top_k = case
    routing = route(scores, top_k, shift=shift, mask=mask)
    scale = bins / 2 / (torch.rand(scores.shape[1]) + 0.01)
    slow, fast = on_each(
        lambda: bin_distances(
            scores,
            shift,
            routing.runner_up,
            routing.margin,
            mask,
            scale,
            bins,
            flips=flips,
            stride=stride,
        )
    )
    assert torch.equal(slow, fast)
    counted = torch.isfinite(routing.margin)[::stride]
    counted = counted if mask is None else counted & ~mask[::stride]
    assert (slow.sum(1) == counted.sum()).all()


@pytest.mark.parametrize("name", ["deepseek", "quantile", "curvature"])
@pytest.mark.parametrize("groups", [None, (4, 2)])
def test_balancers_take_the_same_steps(name, groups):
    torch.manual_seed(0)
    batches = torch.randn(6, 200, 16).softmax(-1)

    def train():
        balancer = equipoise.balancer(name, 16, top_k=3)
        for scores in batches:
            balancer.update(balancer.tally(scores, balancer.route(scores, groups=groups)))
        return balancer.shift

    slow, fast = on_each(train)
    assert slow.any()
    assert torch.equal(slow, fast)


def test_equal_scores_go_to_the_lowest_experts():
    for routing in on_each(lambda: route(torch.ones(3, 9), 4)):
        assert routing.experts.tolist() == [[0, 1, 2, 3]] * 3
        assert routing.runner_up.tolist() == [4] * 3


def test_equal_groups_are_kept_from_the_lowest():
    for routing in on_each(lambda: route(torch.ones(2, 8), 2, groups=(4, 2))):
        assert routing.allowed.tolist() == [[True, True, False, False]] * 2


def test_double_precision_is_left_to_the_reference():
    scores = torch.rand(20, 6, dtype=torch.float64)
    scores[:, 1] = scores[:, 0] + 1e-12
    for routing in on_each(lambda: route(scores, 1)):
        assert routing.margin.dtype == torch.float64
        assert not (routing.experts == 0).any()


def test_what_a_back_end_cannot_do_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(backends, "_told", set())
    scores = torch.rand(4, 6, dtype=torch.float64)
    with caplog.at_level(logging.WARNING, "equipoise.kernels"):
        route(scores, 2)
        assert not caplog.records
        with kernels("processor"):
            route(scores, 2)
            route(scores, 2)
    assert [record.getMessage() for record in caplog.records] == [
        "the back end 'processor' does not take scores in torch.float64: the reference does"
    ]


def test_an_unknown_back_end_is_refused():
    with pytest.raises(
        ValueError, match="one of 'auto', 'reference', 'processor', 'triton', not 'gpu'"
    ):
        kernels("gpu")


def test_a_block_restores_the_back_end():
    with kernels("reference"):
        assert backends._chosen == "reference"
    assert backends._chosen == "auto"


def test_gates_carry_gradients_and_nothing_else_does():
    scores = torch.rand(5, 6, requires_grad=True)
    routing = route(scores, 2, shift=torch.zeros(6))
    routing.gates.sum().backward()
    assert torch.equal(scores.grad, torch.zeros(5, 6).scatter(1, routing.experts, 1.0))
    assert not routing.margin.requires_grad


def test_a_shift_is_the_same_as_adjusted_scores():
    torch.manual_seed(1)
    scores, shift = torch.rand(64, 8), torch.randn(8)
    one, other = route(scores, 3, shift=shift), route(scores, 3, choose_by=scores + shift)
    assert torch.equal(one.experts, other.experts)
    assert torch.equal(one.margin, other.margin)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shift": torch.zeros(3)}, r"shift must be floating point of shape \(4,\)"),
        ({"shift": torch.zeros(4), "choose_by": torch.zeros(2, 4)}, "give one of them"),
        ({"shift": [0.0] * 4}, "shift must be a torch.Tensor"),
    ],
)
def test_a_wrong_shift_is_refused(wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        route(torch.rand(2, 4), 2, **wrong)


def test_operators_pass_torchs_own_check():
    scores, shift = torch.rand(7, 5), torch.rand(5)
    torch.library.opcheck(torch.ops.equipoise.rank_experts, (scores, shift, None, 2, 3))
    routing = route(scores, 2, shift=shift)
    torch.library.opcheck(
        torch.ops.equipoise.bin_distances,
        (scores, shift, routing.runner_up, routing.margin, None, torch.ones(5), 8, True, 2),
    )
