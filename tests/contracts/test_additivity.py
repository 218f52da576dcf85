"""However a batch is cut into micro-batches, its tally is the same: for any sizes, skews, masks and
cuts.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.routing import route
from tests.contracts.table import assert_same_state, assert_same_tally


@st.composite
def batches(draw):
    num_experts = draw(st.integers(2, 12))
    top_k = draw(st.integers(1, num_experts - 1))
    num_tokens = draw(st.integers(1, 60))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    popularity = draw(st.floats(0, 3)) * torch.randn(num_experts, generator=rng)
    scores = (torch.randn(num_tokens, num_experts, generator=rng) + popularity).softmax(-1)
    mask = torch.rand(num_tokens, generator=rng) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    cuts = sorted(draw(st.lists(st.integers(0, num_tokens), max_size=4)))
    return scores, mask, top_k, cuts


def count(balancer, scores, mask):
    routing = route(scores, balancer.top_k, choose_by=balancer.adjust(scores), mask=mask)
    return balancer.tally(scores, routing)


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from(["deepseek", "adagrad", "quantile"]))
def test_cuts_change_no_tally(batch, name):
    scores, mask, top_k, cuts = batch
    whole, cut = (equipoise.balancer(name, scores.shape[1], top_k=top_k) for _ in range(2))
    for _ in range(3):
        tally = count(whole, scores, mask)
        pieces = zip(scores.tensor_split(cuts), mask.tensor_split(cuts), strict=True)
        summed = sum(count(cut, *piece) for piece in pieces)
        assert_same_tally(summed, tally)
        whole.update(tally)
        cut.update(summed)
        assert_same_state(cut, whole)
        assert torch.isfinite(whole.shift).all()


@settings(max_examples=60, deadline=None)
@given(batches())
def test_gaps_sum_to_zero(batch):
    scores, mask, top_k, _ = batch
    balancer = equipoise.balancer("deepseek", scores.shape[1], top_k=top_k)
    loads = count(balancer, scores, mask).loads
    gap = balancer.target.gap(loads)
    assert abs(float(gap.sum())) < 1e-9
    assert torch.equal(gap.sign().long(), (loads.sum() - scores.shape[1] * loads).sign())
