"""A stand-in of torchtitan, where it is not installed: what our router looks at of it, and no more.

It is in our own words, and proves nothing on the real one: test_real_releases.py does.
"""

import contextlib
import dataclasses
import sys
import types

import torch
from torch import nn

OURS = "equipoise.integrations.torchtitan"


class Router(nn.Module):
    """A token-choice router with a config."""

    @dataclasses.dataclass(kw_only=True)
    class Config:
        num_experts: int = 8
        top_k: int = 2
        dim: int = 16
        score_func: str = "sigmoid"
        num_expert_groups: int | None = None
        num_limited_groups: int | None = None
        route_norm: bool = False
        route_scale: float = 1.0
        sharding_config: object = None
        _debug_force_load_balance: bool = False

    def __init__(self, config):
        super().__init__()
        for each in dataclasses.fields(Router.Config):
            setattr(self, each.name, getattr(config, each.name))
        self.gate = nn.Linear(config.dim, config.num_experts, bias=False)

    def _debug_force_load_balance_routing(self, scores):
        rows, chosen = len(scores), self.top_k
        return torch.arange(rows * chosen).view(rows, chosen) % self.num_experts, None


class MoE(nn.Module):
    """A layer that counts tokens and passes its bias to its router."""

    def __init__(self, router, *, with_bias=True):
        super().__init__()
        self.router = router
        self.seen = []
        bias = torch.zeros(router.num_experts) if with_bias else None
        self.register_buffer("expert_bias_E", bias)
        counts = torch.zeros(router.num_experts)
        self.register_buffer("tokens_per_expert_E", counts, persistent=False)

    def forward(self, x):
        gates, experts, _ = self.router(x, self.expert_bias_E)
        self.seen.append(torch.bincount(experts.flatten(), minlength=self.router.num_experts))
        if self.training:
            self.tokens_per_expert_E += self.seen[-1]
        return x * gates.sum(-1, keepdim=True)


class Layers(nn.Module):
    """Two MoE layers with other numbers of experts and choices."""

    def __init__(self, *moes):
        super().__init__()
        self.layers = nn.ModuleDict({str(place): moe for place, moe in enumerate(moes)})

    def forward(self, x):
        for moe in self.layers.values():
            x = x + moe(x)
        return x


class OneProcess:
    """Parallel dimensions of one process."""

    ep_enabled, tp = False, 1

    def get_optional_mesh(self, name):
        return None


@contextlib.contextmanager
def stand_in_torchtitan():
    """BalancedTopKRouter, over the stand-in's router."""
    names = ["torchtitan", "torchtitan.models", "torchtitan.models.common"]
    fakes = {name: types.ModuleType(name) for name in [*names, f"{names[-1]}.moe"]}
    fakes[f"{names[-1]}.moe"].TokenChoiceTopKRouter = Router
    bound = [f"{OURS}.router", f"{OURS}.model_spec"]
    before = {name: sys.modules.pop(name, None) for name in [*fakes, *bound]}
    sys.modules.update(fakes)
    try:
        from equipoise.integrations.torchtitan.router import BalancedTopKRouter

        yield BalancedTopKRouter
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
