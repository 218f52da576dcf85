"""torchtitan's hook on loads, replaced: on a stand-in of its model, and on its own MoE layer where
it is installed (test_real_releases.py fetches it).
"""

import pytest
import torch
from torch import nn

import equipoise
from equipoise.integrations.by_loads import ByLoads
from equipoise.integrations.torchtitan import load_balancing_hook
from equipoise.integrations.torchtitan.moe_layers import moe_buffer
from tests.integrations.torchtitan.real_torchtitan import build_layer, hidden_of


class Alone:
    """Parallel dimensions of one process."""

    ep_enabled, tp = False, 1

    def get_optional_mesh(self, name):
        return None


class Router(nn.Module):
    top_k = 2


class StandIn(nn.Module):
    """What the hook looks at of torchtitan's MoE."""

    def __init__(self):
        super().__init__()
        self.router = Router()
        self.load_balance_coeff = 1e-3
        self.register_buffer("expert_bias_E", torch.zeros(8))
        self.register_buffer("tokens_per_expert_E", torch.zeros(8), persistent=False)


def model_of(*moes):
    layers = nn.ModuleDict({"0": nn.Module()})
    layers["0"].moe_enabled = False
    for place, moe in enumerate(moes, start=1):
        block = nn.Module()
        block.moe, block.moe_enabled = moe, True
        layers[str(place)] = block
    model = nn.Module()
    model.layers = layers
    model.weight = nn.Parameter(torch.zeros(1))
    return model


def step(model, optimizer, counts):
    for block, each in zip(list(model.layers.values())[1:], counts):
        block.moe.tokens_per_expert_E.add_(each)
    optimizer.step()


@pytest.mark.parametrize("name", ["moonlight", "smebu", "adagrad"])
def test_layers_are_balanced_apart(name):
    model = model_of(StandIn(), StandIn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    register = load_balancing_hook(name)
    register(optimizer, [model], Alone())
    twins = [equipoise.balancer(name, 8, top_k=2) for _ in range(2)]
    for seed in range(3):
        counts = torch.randint(0, 40, (2, 8), generator=torch.Generator().manual_seed(seed)).float()
        step(model, optimizer, counts)
        for twin, count, block in zip(twins, counts, list(model.layers.values())[1:]):
            loads = count.long()
            twin.update(equipoise.Tally(loads, loads[None], twin.steps.clone()))
            assert torch.equal(block.moe.expert_bias_E, twin.shift)
            assert not block.moe.tokens_per_expert_E.any()
    assert all(twin.shift.any() for twin in twins)


@pytest.mark.parametrize("name", ["moonlight", "deepseek"])
def test_every_layer_has_its_own_coefficient(name):
    """As in torchtitan, which reads a layer's load_balance_coeff at every step."""
    model = model_of(StandIn(), StandIn(), StandIn())
    moes = [block.moe for block in list(model.layers.values())[1:]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    load_balancing_hook(name)(optimizer, [model], Alone())
    count = torch.arange(8.0)
    for rates in ([1e-3, 1e-2, 5e-2], [2e-3, 0.0, 5e-2]):
        before = [moe.expert_bias_E.clone() for moe in moes]
        for moe, rate in zip(moes, rates):
            moe.load_balance_coeff = rate
        step(model, optimizer, count.expand(3, 8))
        for moe, old, rate in zip(moes, before, rates):
            torch.testing.assert_close(
                moe.expert_bias_E - old, rate * (count.mean() - count).sign()
            )


def test_every_layer_has_its_own_top_k():
    """inverse divides by the number of tokens: counts over top_k."""
    model = model_of(StandIn(), StandIn())
    moes = [block.moe for block in list(model.layers.values())[1:]]
    moes[1].router.top_k = 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    load_balancing_hook("inverse")(optimizer, [model], Alone())
    step(model, optimizer, torch.arange(8.0).expand(2, 8))
    torch.testing.assert_close(moes[1].expert_bias_E, 2 * moes[0].expert_bias_E)


class Mesh:
    def __init__(self, name):
        self.name = name

    def get_group(self):
        return self.name


class Parallel:
    """Parallel dimensions with tensor and expert parallelism, of torchtitan 0.3.0."""

    ep_enabled, tp = True, 2

    def get_mesh(self, name):
        return Mesh(name)

    def get_optional_mesh(self, name):
        return Mesh(name)


class NewerParallel(Parallel):
    """Later ones name the mesh of the dense layers."""

    def get_dense_tp_mesh(self):
        return Mesh("dense tp")


@pytest.mark.parametrize(
    ("dims", "groups"), [(Parallel(), ["tp", "loss"]), (NewerParallel(), ["dense tp", "loss"])]
)
def test_loads_are_reduced_over_torchtitans_meshes(monkeypatch, dims, groups):
    seen = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda loads, group: seen.append(group))
    model = model_of(StandIn())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    load_balancing_hook()(optimizer, [model], dims)
    step(model, optimizer, torch.arange(8.0)[None])
    assert seen == groups


def test_what_a_rule_remembers_is_saved():
    first, loads = ByLoads("smebu", 2), torch.randint(0, 40, (2, 8)).float()
    bias = first.update(loads, torch.zeros(2, 8))
    second = ByLoads("smebu", 2)
    second.load_state_dict(first.state_dict())
    # also before the first update, which makes the balancers
    assert second.state_dict().keys() == first.state_dict().keys()
    assert torch.equal(second.update(loads, bias), first.update(loads, bias))
    with pytest.raises(ValueError, match=r"3 layers are updated, but .* there were 2"):
        second.update(torch.ones(3, 8), torch.zeros(3, 8))


def test_mistakes_are_reported():
    with pytest.raises(ValueError, match="needs more than loads"):
        ByLoads("curvature", 2)
    layer = StandIn()
    layer.expert_bias_E = None
    with pytest.raises(ValueError, match=r"no expert bias: layers\.1\.moe"):
        load_balancing_hook()(None, [model_of(layer)], Alone())


def test_torchtitans_own_layer_is_balanced():
    layer = build_layer()
    model = model_of(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    load_balancing_hook("proportional", update_rate=0.02)(optimizer, [model], Alone())
    hidden, imbalance = hidden_of(tokens=128), []
    for _ in range(60):
        layer(hidden).sum().backward()
        imbalance.append(
            float(equipoise.metrics(moe_buffer(layer, "tokens_per_expert").long())["imbalance"])
        )
        optimizer.step()
    assert imbalance[-1] < imbalance[0] / 4
