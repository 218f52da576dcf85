"""Other people's MoE layers, as published on PyPI: loads equal what their experts received.

Their code is fetched into a folder of its own; ours must balance it from outside or say why not.
Run by hand in the same way: nanoMoE and minimind, which are on no registry (docs/own-layers.md).
"""

import importlib
import importlib.abc
import importlib.machinery
import subprocess
import sys
from unittest import mock

import pytest
import torch
from torch import nn

import equipoise

# xdist cannot hand on a warning whose class stands in a package that only this process has
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PACKAGES = (
    "mixture-of-experts==0.2.3",
    "st-moe-pytorch==0.1.8",
    "colt5-attention==0.11.2",
    "soft-moe-pytorch==0.1.9",
    "ai2-olmo-core==3.0.0",
    # what these import
    "beartype",
    "dataclass-extensions",
    "einops",
    "hyper-connections",
    "local-attention",
    "torch-einops-utils",
)
CLOUDS = {"google", "boto3", "botocore", "cached_path", "bettermap", "omegaconf"}


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for clients of clouds that OLMo-core imports and its layers do not use."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in CLOUDS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = mock.MagicMock()
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


@pytest.fixture(scope="module", autouse=True)
def _published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    fetch = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    found = subprocess.run([*fetch, *PACKAGES], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"these packages could not be had: {found.stderr.strip()[-200:]}")
    absent, modules = Absent(), set(sys.modules)
    sys.path.insert(0, str(folder))
    sys.meta_path.append(absent)
    yield
    sys.path.remove(str(folder))
    sys.meta_path.remove(absent)
    for name in set(sys.modules) - modules:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def train(model, received, rule="curvature", steps=3, **options):
    """Loads of every step, and what `received` says."""
    balancing = equipoise.balance(model, rule, **options)
    for step in range(steps):
        hidden = torch.randn(2, 32, 16, generator=torch.Generator().manual_seed(step))
        output = model(hidden)
        (output[0] if isinstance(output, tuple) else output).sum().backward()
        balancing.step()
        (loads,) = balancing.metrics(loads=True)["loads"].values()
        assert loads == received[-1]
    assert balancing.routers[0].applied_shift.any()
    balancing.detach()


@pytest.mark.parametrize("rule", ["deepseek", "curvature"])
def test_st_moe(rule):
    moe = importlib.import_module("st_moe_pytorch").MoE(
        dim=16, num_experts=8, gating_top_n=2, threshold_train=0.0, capacity_factor_train=16.0
    )
    received = []
    moe.gate.register_forward_hook(
        lambda _, args, output: received.append((output[0].detach() > 0.5).sum((0, 1, 3)).tolist())
    )
    with pytest.warns(UserWarning, match="capacity_factor"):
        train(moe, received, rule)


@pytest.mark.parametrize("bias_gamma", [None, 1e-3])
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("kind", ["default", "dropless"])
def test_olmo_core(kind, top_k, bias_gamma):
    moe = importlib.import_module("olmo_core.nn.moe")
    router = moe.MoERouterConfig(top_k=top_k, bias_gamma=bias_gamma)
    config = moe.MoEConfig(
        name=kind,
        num_experts=8,
        hidden_size=32,
        router=router,
        lb_loss_weight=None,
        z_loss_weight=None,
    )
    layer = config.build(d_model=16, n_layers=1, init_device="cpu")
    nn.init.normal_(layer.router.weight, std=0.1)
    received = []

    class Dispatched(nn.Module):
        """In place of its experts, which need a GPU."""

        def forward(self, hidden, weights, indices, loads):
            received.append(torch.bincount(indices.flatten(), minlength=8).tolist())
            assert loads.tolist() == received[-1]
            return hidden * weights.sum(-1, keepdim=True)

    layer.experts = Dispatched()
    # the largest of one is taken by torch.max, which must be named
    named = {"routers": "router"} if top_k == 1 and bias_gamma is None else {}
    rule = "deepseek" if bias_gamma else "curvature"
    train(layer, received, rule, **named)


def test_mixture_of_experts_is_refused_with_the_remedy():
    """It takes its second expert by another top-1."""
    moe = importlib.import_module("mixture_of_experts").MoE(dim=16, num_experts=8)
    with pytest.raises(ValueError, match=r"(?s)Top2Gating.*2 top-Ks.*LayerBalancer"):
        equipoise.balance(moe)


def test_soft_moe_has_nothing_to_balance():
    moe = importlib.import_module("soft_moe_pytorch").SoftMoE(dim=16, seq_len=32, num_experts=8)
    with pytest.raises(ValueError, match=r"(?s)no router to balance.*LayerBalancer"):
        equipoise.balance(moe)
