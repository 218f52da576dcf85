"""torchtitan's hook, replaced: on a stand-in of its model everywhere, and on its own MoE layer
where it is installed.

It is not among our dependencies: it wants triton, wandb, tensorboard and an older datasets,
hundreds of megabytes of which its MoE layer needs none. So a slow test fetches torchtitan alone
(1.4 MB) into a folder of its own.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

import equipoise
from equipoise.integrations.by_loads import ByLoads
from equipoise.integrations.torchtitan import load_balancing_hook


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


class NoTriton(types.ModuleType):
    """torchtitan's kernels for GPUs are written in triton, and importing them wants its names. None
    of them runs here.
    """

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock()


def real_layer(monkeypatch):
    if importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed; a slow test fetches it")
    if importlib.util.find_spec("triton") is None:
        # torch must have looked for triton, and not found it, before
        importlib.import_module("torch._inductor.select_algorithm")
        for name in ("triton", "triton.language"):
            monkeypatch.setitem(sys.modules, name, NoTriton(name))
    from torchtitan.models.common import moe
    from torchtitan.models.common.linear import Linear
    from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

    torch.manual_seed(0)
    config = moe.MoE.Config(
        num_experts=8,
        routed_experts=moe.RoutedExperts.Config(
            inner_experts=moe.GroupedExperts.Config(dim=16, hidden_dim=16, num_experts=8),
            token_dispatcher=LocalTokenDispatcher.Config(num_experts=8, top_k=2),
        ),
        router=moe.TokenChoiceTopKRouter.Config(
            num_experts=8, top_k=2, gate=Linear.Config(in_features=16, out_features=8, bias=False)
        ),
    )
    layer = config.build()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def test_torchtitans_own_layer_is_balanced(monkeypatch):
    layer = real_layer(monkeypatch).train()
    model = model_of(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    load_balancing_hook("proportional", update_rate=0.02)(optimizer, [model], Alone())
    hidden, imbalance = torch.randn(2, 64, 16) + 0.5, []
    for _ in range(60):
        layer(hidden).sum().backward()
        imbalance.append(float(equipoise.metrics(layer.tokens_per_expert_E.long())["imbalance"]))
        optimizer.step()
    assert imbalance[-1] < imbalance[0] / 4


@pytest.mark.slow
def test_torchtitan_is_fetched_and_balanced(tmp_path):
    """The test above, in a process that has torchtitan 0.3.0."""
    fetch = (
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path),
        "torchtitan==0.3.0",
        "spmd_types==0.2.3",
    )
    subprocess.run([sys.executable, "-m", "pip", *fetch], check=True, capture_output=True)
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(tmp_path), str(root / "src")])
    test = f"{Path(__file__).relative_to(root)}::{test_torchtitans_own_layer_is_balanced.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    finished = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in finished.stdout, finished.stdout[-3000:] + finished.stderr[-2000:]
