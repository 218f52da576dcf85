"""The router: scores in float32, its balancer inside, and nothing counted on the side."""

import pytest
import torch

import equipoise
from equipoise.layers.router import Router

E, K, D = 8, 2, 16


def router(name="deepseek", **options):
    torch.manual_seed(0)
    return Router(D, equipoise.balancer(name, E, top_k=K), init_std=0.5, **options)


def hidden(*shape, seed=1):
    return torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus"])
def test_it_routes_by_its_scores(score):
    layer, x = router(score=score, renormalize=True, scale=2.5), hidden(3, 10)
    routed = layer(x)
    scores = equipoise.score_function(score)(x.flatten(0, 1) @ layer.weight.T)
    expected = equipoise.route(scores, K, renormalize=True, scale=2.5)
    assert torch.equal(routed.routing.experts, expected.experts)
    torch.testing.assert_close(routed.routing.gates, expected.gates)
    assert routed.tally.loads.sum() == 30 * K


def test_groups_and_masks_pass_through():
    mask = torch.zeros(3, 10, dtype=torch.bool)
    mask[:, 7:] = True
    routed = router(groups=(4, 2))(hidden(3, 10), mask)
    assert routed.tally.loads.sum() == 21 * K
    assert routed.routing.allowed.sum(1).eq(2).all()


def test_autocast_does_not_choose():
    layer, x = router(), hidden(200)
    with torch.autocast("cpu", torch.bfloat16):
        inside = layer(x)
    assert torch.equal(inside.routing.experts, layer(x).routing.experts)
    assert inside.routing.gates.dtype == torch.float32


def test_bf16_models_score_in_float32():
    layer, x = router().bfloat16(), hidden(50).bfloat16()
    routed = layer(x)
    expected = (x.float() @ layer.weight.float().T).softmax(-1)
    assert torch.equal(routed.routing.experts, expected.topk(K).indices)
    assert layer.balancer.shift.dtype == torch.float32


def test_penalties_reach_the_weights():
    layer = router("aux")
    layer(hidden(50)).penalty.backward()
    assert layer.weight.grad.abs().sum() > 0


def test_z_loss_gets_its_logits():
    assert router("z_loss")(hidden(50)).penalty > 0


def test_bad_settings_are_told():
    with pytest.raises(ValueError, match=r"no score function 'softmaks' \(did you mean 'softmax'"):
        router(score="softmaks")
    with pytest.raises(ValueError, match="look_ahead"):
        router(look_ahead=-1)


@pytest.mark.parametrize("name", ["expert_choice", "threshold", "quantile"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_anticipation_by_unchanged_weights_changes_nothing(name, renormalize):
    """Also where experts choose, so that tokens have empty places."""
    x = hidden(40)
    first, plain = (
        router(name, anticipate=steps, renormalize=renormalize, score="sigmoid")(x)
        for steps in (2, 0)
    )
    assert torch.equal(first.routing.experts, plain.routing.experts)
    assert torch.equal(first.routing.loads, plain.routing.loads)
    torch.testing.assert_close(first.routing.gates, plain.routing.gates)
