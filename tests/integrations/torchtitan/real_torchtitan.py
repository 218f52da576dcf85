"""What the tests on the real torchtitan build: its MoE layer, in any release, with our router.

torchtitan is not among our dependencies (test_real_releases.py fetches it). Its kernels for GPUs
are written in triton, and importing them wants triton's names: without triton, a stand-in has them.
None of them runs here.
"""

import dataclasses
import importlib
import importlib.util
import sys
import types
from unittest import mock

import pytest
import torch
from torch import nn


class NoTriton(types.ModuleType):
    """Every name of triton, each of them nothing."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock()


def require_torchtitan():
    """Skip where torchtitan is not installed; else make it run on a CPU."""
    torch.histc = histogram_of_integers
    if importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed; a slow test fetches it")
    if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        # torch must have looked for triton, and not found it, before
        importlib.import_module("torch._inductor.select_algorithm")
        for name in ("triton", "triton.language"):
            sys.modules[name] = NoTriton(name)


def has_configs():
    """Whether this release builds its modules from configs: since 0.3."""
    return importlib.util.find_spec("torchtitan.models.common") is not None


def skip_before_0_2_1(reason):
    """Skip in the one release that lacks it."""
    require_torchtitan()
    if has_configs():
        return
    from torchtitan.models.moe.moe import MoEArgs

    if "num_expert_groups" not in {each.name for each in dataclasses.fields(MoEArgs)}:
        pytest.skip(f"torchtitan 0.2.0 {reason}")


def build_layer(num_experts=8, top_k=2, dim=16, *, balancer=None, options=None, **router):
    """torchtitan's MoE layer; with our router if a balancer is named."""
    require_torchtitan()
    torch.manual_seed(0)
    build = _layer_of_configs if has_configs() else _layer_of_arguments
    layer = build(num_experts, top_k, dim, balancer, options or {}, router)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.train()


def _layer_of_configs(num_experts, top_k, dim, balancer, options, router):
    from torchtitan.models.common import moe
    from torchtitan.models.common.linear import Linear
    from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

    from equipoise.integrations.torchtitan import BalancedTopKRouter

    ours = {} if balancer is None else {"balancer": balancer, "balancer_options": options}
    kind = moe.TokenChoiceTopKRouter if balancer is None else BalancedTopKRouter
    gate = Linear.Config(in_features=dim, out_features=num_experts, bias=False)
    return moe.MoE.Config(
        num_experts=num_experts,
        routed_experts=moe.RoutedExperts.Config(
            inner_experts=moe.GroupedExperts.Config(
                dim=dim, hidden_dim=dim, num_experts=num_experts
            ),
            token_dispatcher=LocalTokenDispatcher.Config(num_experts=num_experts, top_k=top_k),
        ),
        router=kind.Config(num_experts=num_experts, top_k=top_k, gate=gate, **router, **ours),
    ).build()


def _layer_of_arguments(num_experts, top_k, dim, balancer, options, router):
    from torchtitan.models.moe import moe

    from equipoise.integrations.torchtitan import convert_routers

    made = moe.MoEArgs(
        num_experts=num_experts, num_shared_experts=0, top_k=top_k, use_grouped_mm=False, **router
    )
    layer = moe.MoE(made, dim=dim, hidden_dim=dim)
    # its init_weights makes them; so does ours below
    if balancer is not None:
        convert_routers(layer, balancer, **options)
    return layer


class Block(nn.Module):
    """What torchtitan's loops look at of a transformer block."""

    moe_enabled = True

    def __init__(self, moe):
        super().__init__()
        self.moe = moe

    def forward(self, x):
        return x + self.moe(x)


class Model(nn.Module):
    """Blocks one after the other, as torchtitan's models keep them."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleDict({str(place): Block(moe) for place, moe in enumerate(layers)})

    def forward(self, x):
        for block in self.layers.values():
            x = block(x)
        return x


class Alone:
    """Parallel dimensions of one process."""

    ep_enabled, tp = False, 1

    def get_optional_mesh(self, name):
        return None


def hidden_of(tokens=64, dim=16, seed=0):
    """Hidden states in the shape that this release's MoE takes, all leaning to one side."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, dim, generator=generator) + 0.5
    return hidden if takes_flat_tokens() else hidden.view(2, tokens // 2, dim)


def takes_flat_tokens():
    """Whether MoE takes (T, D): newer than 0.3.0."""
    if not has_configs():
        return False
    import inspect

    from torchtitan.models.common.moe import MoE

    return "x_TD" in inspect.signature(MoE.forward).parameters


def histogram_of_integers(values, bins=100, min=0, max=0, own=torch.histc):
    """torch.histc, of integers too: releases 0.2 call it so, which only GPUs can."""
    if values.is_floating_point():
        return own(values, bins=bins, min=min, max=max)
    return torch.bincount(values, minlength=bins)


def watch_loads(layer):
    """A list to which every call of the layer's experts appends what they received, (E,)."""
    seen = []
    experts = layer.routed_experts.inner_experts if has_configs() else layer.experts
    experts.register_forward_pre_hook(lambda module, args: seen.append(args[1].long().clone()))
    return seen


def debug_spec(balancer="curvature", layers=3):
    """torchtitan's DeepSeek-V3 for debugging, cut to a few layers, with our routers."""
    require_torchtitan()
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.deepseek_v3 import model_registry

    from equipoise.integrations.torchtitan import balance_model_spec

    spec = balance_model_spec(model_registry("debugmodel"), balancer)
    spec.model.layers = spec.model.layers[:layers]
    for layer in spec.model.layers:
        # the one inner attention that runs backwards on a CPU
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return spec


def build_optimizers(model_parts):
    """torchtitan's own container of optimizers."""
    from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig

    group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-4})
    made = OptimizersContainer.Config(implementation="for-loop", param_groups=[group])
    return made.build(model_parts=model_parts)


def materialize(model):
    """As torchtitan's trainer does after parallelizing."""
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cpu"))
    return model.train()
