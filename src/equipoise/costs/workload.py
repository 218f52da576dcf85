"""workload: a model and its batch as the clock of a cluster sees them.

Published ones by name; a preset of `equipoise train` becomes one in experiments/step_time.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a step computes and sends."""

    name: str
    tokens: int
    """of a step, on all devices together"""
    moe_layers: int
    num_experts: int
    top_k: int
    hidden_size: int
    expert_size: int
    """the inner width of an expert"""
    flops_per_token: float
    """forward and backward, all of the model"""
    bytes_per_number: float = 2.0
    """of what is sent to experts and back: bfloat16"""

    def __post_init__(self) -> None:
        for name in ("tokens", "moe_layers", "num_experts", "top_k", "hidden_size", "expert_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.flops_per_token < self.expert_flops:
            raise ValueError(
                f"{self.name}: {self.flops_per_token:g} FLOPs a token are fewer than those of its "
                f"routed experts, {self.expert_flops:g}: forward and backward of all parts count"
            )

    @property
    def expert_flops(self) -> float:
        """Of flops_per_token, those in routed experts: three matrices, six FLOPs a weight."""
        weights = 3 * self.hidden_size * self.expert_size
        return 6.0 * self.moe_layers * self.top_k * weights

    @property
    def expert_share(self) -> float:
        """Of all FLOPs, those in routed experts."""
        return self.expert_flops / self.flops_per_token


def _attention_flops(layers: int, length: int, heads: int, widths: int) -> float:
    """Of a token, forward and backward: scores and values against half of the sequence."""
    return 3.0 * layers * length * heads * widths


PUBLISHED = {
    each.name: each
    for each in (
        # arXiv:2412.19437: 61 layers of which 3 are dense, 37B active, MLA of 128 heads with
        # 192-wide keys and 128-wide values, 15,360 sequences of 4,096. The embedding, 129,280 x
        # 7,168, is looked up and not multiplied.
        Workload(
            name="deepseek-v3",
            tokens=15_360 * 4096,
            moe_layers=58,
            num_experts=256,
            top_k=8,
            hidden_size=7168,
            expert_size=2048,
            flops_per_token=6 * (37e9 - 129_280 * 7168) + _attention_flops(61, 4096, 128, 320),
        ),
        # arXiv:2507.20534: 61 layers of which 1 is dense, 32.6B active, 384 experts, 64 heads,
        # 67M tokens a step in sequences of 4,096, a vocabulary of 163,840
        Workload(
            name="kimi-k2",
            tokens=2**26,
            moe_layers=60,
            num_experts=384,
            top_k=8,
            hidden_size=7168,
            expert_size=2048,
            flops_per_token=6 * (32.6e9 - 163_840 * 7168) + _attention_flops(61, 4096, 64, 320),
        ),
        # marin-community/marin issues 7668 and 7201: 482,887 tokens/s at 779.333 TFLOP/s on each
        # of 64 GB200, 2^22 tokens a step; 48 layers, hidden size 5,120. The width of its 256
        # experts is inferred: 64 of 2,560 are 121B parameters there, and 250B in all twice that.
        Workload(
            name="grug-250b",
            tokens=2**22,
            moe_layers=48,
            num_experts=256,
            top_k=8,
            hidden_size=5120,
            expert_size=1280,
            flops_per_token=779.333e12 * 64 / 482_887,
        ),
    )
}
