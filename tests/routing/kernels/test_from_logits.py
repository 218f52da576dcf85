"""The choice from logits against the score function, a sort and a gather: values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import check_scores, kernels, route, score_function
from equipoise.routing.kernels import from_logits
from equipoise.routing.kernels.from_logits import choose_experts
from equipoise.routing.kernels.reference import rank_by_sorting

SCORES = ["softmax", "sigmoid", "sqrt_softplus"]


def case(tokens, experts, kind=torch.float32, seed=0):
    rng = torch.Generator().manual_seed(seed)
    logits = (torch.randn(tokens, experts, generator=rng) * 2).to(kind)
    mask = torch.rand(tokens, generator=rng) < 0.3
    return logits, torch.randn(experts, generator=rng) * 0.1, mask


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(SCORES), st.integers(0, 60), st.integers(2, 24), st.integers(1, 24),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.integers(0, 1000),
)  # fmt: skip
def test_blocks_are_ranked_as_a_sort_would(score, tokens, experts, top_k, kind, seed):
    logits, shift, mask = case(tokens, experts, kind, seed)
    top_k = min(top_k, experts)
    wanted = min(top_k + 1, experts)
    before, from_logits._BLOCK_SCORES = from_logits._BLOCK_SCORES, 7 * experts
    try:
        fast = choose_experts(logits, shift, mask, score, top_k, wanted)
    finally:
        from_logits._BLOCK_SCORES = before
    # in the same blocks, since torch's sigmoid depends on where a number stands
    scores = torch.cat([score_function(score)(part) for part in logits.split(7)])
    values, chosen, loads = rank_by_sorting(scores, shift, mask, top_k, wanted)
    slow = scores.gather(1, chosen[:, :top_k]), values, chosen, loads
    assert all(torch.equal(one, other) for one, other in zip(slow, fast, strict=True))


@pytest.mark.parametrize("score", SCORES)
def test_blocks_leave_no_seam(score):
    logits, shift, mask = case(33001, 64)
    fast = choose_experts(logits, shift, mask, score, 6, 7)
    with kernels("reference"):
        slow = choose_experts(logits, shift, mask, score, 6, 7)
    torch.testing.assert_close(fast.gates, slow.gates, rtol=1e-6, atol=0)
    assert (fast.experts == slow.experts).float().mean() > 0.9999
    assert fast.loads.sum() == slow.loads.sum() == 6 * int((~mask).sum())


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_gradients_are_those_through_the_scores(score, kind):
    logits, shift, mask = case(50, 12, kind)
    # where the softplus underflows and where it saturates
    logits[0] = torch.linspace(-200, 200, 12)
    weight = torch.randn(50, 3)

    def gradient(call):
        leaf = logits.clone().requires_grad_()
        (call(leaf).gates * weight).sum().backward()
        return leaf.grad

    ours = gradient(lambda leaf: route(leaf, 3, shift=shift, mask=mask, score=score))
    theirs = gradient(lambda leaf: route(score_function(score)(leaf), 3, shift=shift, mask=mask))
    assert theirs.abs().sum() > 0
    assert ours.dtype is kind
    torch.testing.assert_close(
        ours, theirs, rtol=1e-5 if kind is torch.float32 else 1e-2, atol=1e-7
    )


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("more", [{}, {"groups": (4, 2)}, {"renormalize": True, "scale": 2.5}])
def test_route_gives_what_it_gives_for_scores(score, more):
    logits, shift, mask = case(70, 16)
    ours = route(logits, 3, shift=shift, mask=mask, score=score, **more)
    theirs = route(score_function(score)(logits), 3, shift=shift, mask=mask, **more)
    for one, other in zip(ours, theirs, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_choose_by_still_decides():
    logits, _, _ = case(20, 8)
    assert torch.equal(
        route(logits, 2, score="sigmoid", choose_by=-logits).experts, route(-logits, 2).experts
    )


def test_a_wrong_name_and_a_nan_are_told():
    logits, _, _ = case(4, 8)
    with pytest.raises(ValueError, match=r"no score function 'sigmod' .did you mean 'sigmoid'"):
        route(logits, 2, score="sigmod")
    with pytest.raises(TypeError, match="named by a string such as 'sigmoid', not 3"):
        route(logits, 2, score=3)
    logits[2, 1] = torch.nan
    with check_scores("always"), pytest.raises(ValueError, match="logits"):
        route(logits, 2, score="sigmoid")


@pytest.mark.parametrize("score", SCORES)
def test_it_is_an_operator_of_torch(score):
    logits, shift, mask = case(9, 8)
    torch.library.opcheck(
        torch.ops.equipoise.choose_experts.default,
        (logits.requires_grad_(), shift, mask, score, 2, 3),
    )
    on_meta = choose_experts(logits.to("meta"), shift.to("meta"), None, score, 2, 3)
    assert [tuple(each.shape) for each in on_meta] == [(9, 2), (9, 3), (9, 3), (8,)]


def test_sigmoid_keeps_no_logits_for_the_way_back():
    logits, shift, _ = case(100, 64)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        route(logits.requires_grad_(), 4, shift=shift, score="sigmoid", runner_up=False)
    assert sum(kept) == 2 * 100 * 4
