"""ModelConfig: the numbers that make a DeepSeekMoE, and the named sizes.

The paper (section 3.1) takes its sizes from Wang et al. 2024, table 5, and its vocabulary from
GPT-2. What neither states and is chosen here: the width of the dense layer (that of all experts a
token passes through), rotary positions with base 10,000, and an output matrix of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GPT2_VOCABULARY = 50_257


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes of a DeepSeekMoE."""

    vocab_size: int
    """entries of the tokenizer"""
    sequence_length: int
    """tokens a sequence has at most"""
    hidden_size: int
    """D"""
    num_heads: int
    """attention heads; each has D / num_heads numbers"""
    dense_layers: int = 1
    """the first layers, whose feed-forward is dense"""
    moe_layers: int
    """the layers after them"""
    num_experts: int
    """E, routed experts of a layer"""
    top_k: int
    """K, how many of them a token takes"""
    shared_experts: int
    """experts that every token takes"""
    expert_size: int
    """the inner width of an expert"""
    score: str = "softmax"
    """from router logits to scores: softmax, sigmoid or sqrt_softplus"""
    renormalize: bool = False
    """divide a token's gates by their sum"""
    init_std: float = 0.006
    """standard deviation of the first weights"""
    norm_epsilon: float = 1e-6
    """in the root of RMSNorm"""
    rotary_base: float = 10_000.0
    """of the rotary frequencies"""

    def __post_init__(self) -> None:
        check_at_least_one(self, "vocab_size", "sequence_length", "hidden_size", "num_heads")
        check_at_least_one(self, "num_experts", "top_k", "expert_size")
        check_positive_finite(self, "init_std", "rotary_base")
        check_finite_not_negative(self, "norm_epsilon")
        check_not_negative(self, "dense_layers", "moe_layers", "shared_experts")
        check_setting(self.dense_layers + self.moe_layers > 0, "a model needs at least one layer")
        check_setting(
            self.hidden_size % (2 * self.num_heads) == 0,
            f"hidden_size = {self.hidden_size} does not divide into {self.num_heads} heads of an "
            "even number (rotary positions turn pairs)",
        )
        check_setting(
            self.top_k <= self.num_experts,
            f"top_k = {self.top_k} of num_experts = {self.num_experts} is impossible",
        )
        if self.score != "softmax":
            # a name that may be wrong; the default is not, and sizes alone need no torch
            from equipoise.routing import score_function

            score_function(self.score)

    @property
    def dense_size(self) -> int:
        """The width of a dense feed-forward: as wide as all experts a token passes through."""
        return (self.top_k + self.shared_experts) * self.expert_size

    @property
    def layers(self) -> int:
        return self.dense_layers + self.moe_layers


def check_setting(holds: bool, message: str) -> None:
    """Raise a ValueError with this message, unless it holds."""
    if not holds:
        raise ValueError(message)


def check_at_least_one(config: object, *names: str) -> None:
    """These settings are counts of something that must be there."""
    for name in names:
        value = getattr(config, name)
        check_setting(value >= 1, f"{name} must be at least 1, not {value}")


def check_not_negative(config: object, *names: str) -> None:
    """These settings are counts that may be 0."""
    for name in names:
        value = getattr(config, name)
        check_setting(value >= 0, f"{name} must not be negative, but is {value}")


def check_positive_finite(config: object, *names: str) -> None:
    """These settings are real numbers, above 0 and finite."""
    for name in names:
        value = getattr(config, name)
        check_setting(0 < value < math.inf, f"{name} must be positive and finite, not {value}")


def check_finite_not_negative(config: object, *names: str) -> None:
    """These settings are real numbers, at least 0 and finite."""
    for name in names:
        value = getattr(config, name)
        check_setting(
            0 <= value < math.inf, f"{name} must be finite and not negative, but is {value}"
        )


MODELS = {
    # For the demonstration: seconds on two cores. Weights start wider than in the paper, since a
    # narrow model that starts at 0.006 spends its few hundred steps leaving the origin.
    "tiny": ModelConfig(
        vocab_size=4096,
        sequence_length=128,
        hidden_size=64,
        num_heads=2,
        moe_layers=3,
        num_experts=16,
        top_k=2,
        shared_experts=1,
        expert_size=64,
        init_std=0.02,
    ),
    "small": ModelConfig(
        vocab_size=4096,
        sequence_length=256,
        hidden_size=256,
        num_heads=4,
        moe_layers=8,
        num_experts=32,
        top_k=4,
        shared_experts=1,
        expert_size=128,
    ),
    # The paper's router (64 experts, top 6, 2 shared, softmax) in a model small enough for two
    # cores.
    "paper-tiny": ModelConfig(
        vocab_size=1024,
        sequence_length=128,
        hidden_size=64,
        num_heads=2,
        moe_layers=2,
        num_experts=64,
        top_k=6,
        shared_experts=2,
        expert_size=16,
        init_std=0.02,
    ),
    "deepseekmoe-1b": ModelConfig(
        vocab_size=GPT2_VOCABULARY,
        sequence_length=4096,
        hidden_size=1024,
        num_heads=8,
        moe_layers=9,
        num_experts=64,
        top_k=6,
        shared_experts=2,
        expert_size=512,
    ),
    # Wang et al. have experts of 853 = 1280 * 2/3; 856 is the next multiple of 8, which grouped
    # multiplications ask for.
    "deepseekmoe-3b": ModelConfig(
        vocab_size=GPT2_VOCABULARY,
        sequence_length=4096,
        hidden_size=1280,
        num_heads=10,
        moe_layers=11,
        num_experts=64,
        top_k=6,
        shared_experts=2,
        expert_size=856,
    ),
}
"""the named sizes; training/config.py has how to train each"""
