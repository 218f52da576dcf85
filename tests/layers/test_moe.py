"""The whole layer, against a sum written out."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import equipoise
from equipoise.layers import MoE

E, K, D, WIDTH = 8, 2, 16, 12


def layer(**options):
    torch.manual_seed(0)
    return MoE(D, WIDTH, E, K, init_std=0.3, **options)


def hidden(*shape, seed=1):
    return torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed))


def test_output_is_the_weighted_sum():
    moe, x = layer(shared_experts=2), hidden(3, 10)
    result = moe(x)
    alone = [
        moe.experts(x.flatten(0, 1), torch.full((30, 1), k), torch.ones(30, 1)) for k in range(E)
    ]  # every expert on every token
    scores = (x.flatten(0, 1) @ moe.router.weight.T).softmax(-1)
    expected = torch.zeros(30, D)
    for token, row in enumerate(scores):
        for k in row.topk(K).indices.tolist():
            expected[token] += row[k] * alone[k][token]
    gate, up = (x @ moe.shared.gate_up.weight.T).chunk(2, -1)
    shared = (F.silu(gate) * up) @ moe.shared.down.weight.T
    torch.testing.assert_close(
        result.output, expected.view(3, 10, D) + shared, rtol=1e-4, atol=1e-5
    )


def test_everything_comes_back():
    output, routing, tally, penalty, sample = layer(look_ahead=8)(hidden(2, 10))
    assert output.shape == (2, 10, D)
    assert routing.experts.shape == (20, K)
    assert tally.loads.sum() == 20 * K
    assert penalty == 0
    assert len(sample.hidden) <= 8


def test_gradients_reach_everything():
    moe, x = layer(shared_experts=1), hidden(40).requires_grad_()
    moe(x).output.square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in moe.parameters())
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_counts_once(reentrant):
    moe, x = layer(), hidden(40).requires_grad_()
    plain = moe(x)
    output, _, tally, _, _ = checkpoint(moe, x, use_reentrant=reentrant)
    assert torch.equal(tally.loads, plain.tally.loads)
    (expected,) = torch.autograd.grad(plain.output.sum(), x)
    output.sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_the_balancer_travels_with_the_layer():
    moe = layer(balancer="deepseek")
    moe.router.balancer.update(moe(hidden(40)).tally)
    assert "router.balancer.shift" in moe.state_dict()
    twin = layer(balancer="deepseek")
    twin.load_state_dict(moe.state_dict())
    assert torch.equal(twin.router.balancer.shift, moe.router.balancer.shift)


def test_other_sizes_are_refused():
    with pytest.raises(ValueError, match="top 2 of 4 experts, the layer for top 2 of 8"):
        layer(balancer=equipoise.balancer("deepseek", 4, top_k=2))


def test_training_evens_the_loads():
    """A few steps of a layer whose router is skewed: every balancer leaves loads more even than
    none.
    """
    skew = torch.zeros(E, D)
    skew[0] = 0.3
    final = {}
    for name in ("none", "quantile", "curvature"):
        moe = layer(balancer=name)
        with torch.no_grad():
            moe.router.weight.add_(skew)
        for step in range(12):
            result = moe(hidden(400, seed=step).abs())
            moe.router.balancer.update(result.tally)
        final[name] = float(equipoise.metrics(result.tally.loads)["imbalance"])
    assert max(final["quantile"], final["curvature"]) < 0.3 * final["none"]
