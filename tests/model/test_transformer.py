"""The model: what it computes, and that nothing in it counts on the side."""

import dataclasses

import pytest
import torch

import equipoise
from equipoise.model import MODELS, DeepSeekMoE, ModelConfig

SMALLEST = ModelConfig(
    vocab_size=61,
    sequence_length=16,
    hidden_size=16,
    num_heads=2,
    moe_layers=2,
    num_experts=8,
    top_k=2,
    shared_experts=1,
    expert_size=8,
    init_std=0.2,
)


def model(config=SMALLEST, seed=0, **options):
    torch.manual_seed(seed)
    return DeepSeekMoE(config, **options)


def tokens(*shape, seed=1):
    return torch.randint(SMALLEST.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def test_later_tokens_change_nothing():
    whole, start = tokens(2, 12), tokens(2, 12)
    whole[:, 7:] = tokens(2, 5, seed=2)
    net = model().eval()
    torch.testing.assert_close(net(whole).logits[:, :7], net(start).logits[:, :7])


def test_positions_matter():
    net = model().eval()
    same = torch.full((1, 8), 3)
    swapped = torch.tensor([[5, 3, 3, 3, 3, 3, 3, 7]]), torch.tensor([[3, 3, 3, 5, 3, 3, 3, 7]])
    one, other = (net(each).logits[0, -1] for each in swapped)
    assert not torch.allclose(one, other, atol=1e-4)
    torch.testing.assert_close(
        net(same).logits[0, 1], net(same).logits[0, 5]
    )  # nothing but itself to attend to


def test_the_loss_is_that_of_the_logits():
    net, x, y = model(), tokens(2, 12), tokens(2, 12, seed=2)
    logits = net(x).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    torch.testing.assert_close(net(x, y).loss, expected)


def test_every_moe_layer_counts():
    out = model()(tokens(2, 12), tokens(2, 12))
    assert [int(tally.loads.sum()) for tally in out.tallies] == [2 * 12 * 2] * 2


def test_layers_have_balancers_of_their_own():
    net = model(balancer="quantile")
    one, other = (layer.router.balancer for layer in net.moe_layers.values())
    assert one is not other
    assert list(net.moe_layers) == ["blocks.1", "blocks.2"]


def test_penalties_reach_the_loss():
    def make(E, K):
        return equipoise.balancer("aux", E, top_k=K, coefficient=2.0)

    assert model(balancer=make)(tokens(2, 12)).penalty > 1
    assert model(balancer="deepseek")(tokens(2, 12)).penalty == 0


def test_recomputing_changes_nothing():
    results = []
    for recompute in (False, True):
        net = model(recompute=recompute)
        out = net(tokens(2, 12), tokens(2, 12, seed=2))
        out.loss.backward()
        results.append((out.loss, out.tallies[1].loads, *(p.grad for p in net.parameters())))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrt_softplus"])
def test_gates_can_be_chosen(score):
    net = model(dataclasses.replace(SMALLEST, score=score))
    net(tokens(2, 12), tokens(2, 12)).loss.backward()
    assert net.moe_layers["blocks.1"].router.weight.grad.abs().sum() > 0


def test_first_weights_have_the_wanted_spread():
    net = model(dataclasses.replace(MODELS["small"], moe_layers=1))
    for name, weight in net.named_parameters():
        if "norm" not in name:
            assert weight.std().item() == pytest.approx(0.006, rel=0.03), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 3}, "does not divide into 3 heads"),
        ({"top_k": 9}, "top_k = 9 of num_experts = 8 is impossible"),
        ({"score": "softmaxx"}, "softmax"),
        ({"expert_size": 0}, "expert_size must be at least 1"),
        ({"dense_layers": 0, "moe_layers": 0}, "at least one layer"),
    ],
)
def test_impossible_sizes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALLEST, **change)


def test_too_long_sequences_are_refused():
    with pytest.raises(ValueError, match="17 tokens are too many: sequence_length is 16"):
        model()(tokens(1, 17))


def test_one_step_at_the_real_widths():
    """The 1B model's code path, with one MoE layer of nine and a short sequence."""
    config = dataclasses.replace(MODELS["deepseekmoe-1b"], moe_layers=1, sequence_length=64)
    net = model(config, balancer="curvature")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    x = torch.randint(config.vocab_size, (1, 65), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(2):
        out = net(x[:, :-1], x[:, 1:])
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        net.moe_layers["blocks.1"].router.balancer.update(out.tallies[0])
        losses.append(float(out.loss.detach()))
    assert losses[0] == pytest.approx(
        torch.log(torch.tensor(50_257.0)).item(), abs=0.1
    )  # knows nothing yet
    assert losses[1] < losses[0]
