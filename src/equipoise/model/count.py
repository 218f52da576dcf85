"""How many parameters a model has, and how many of them a token uses."""

from __future__ import annotations

from typing import NamedTuple

import torch

from equipoise.balancing import Balancer, balancer
from equipoise.layers import MoE
from equipoise.model.config import ModelConfig
from equipoise.model.transformer import DeepSeekMoE


class Parameters(NamedTuple):
    total: int
    active: int
    """all but the routed experts that a token does not take"""
    embedding: int
    """the table of input vectors, which is looked up and not multiplied; part of both"""


def count_parameters(config: ModelConfig) -> Parameters:
    """Counted on a model that is built but takes no memory.

    Example:
        >>> from equipoise.model import MODELS
        >>> f"{count_parameters(MODELS['deepseekmoe-1b']).total / 1e9:.2f} billion"
        '1.09 billion'
    """
    with torch.device("meta"):
        model = DeepSeekMoE(config, balancer=_make_cpu_balancer)
    total = sum(each.numel() for each in model.parameters())
    routed = sum(
        each.numel()
        for layer in model.modules()
        if isinstance(layer, MoE)
        for each in layer.experts.parameters()
    )
    idle = routed // config.num_experts * (config.num_experts - config.top_k)
    return Parameters(total, total - idle, model.embedding.weight.numel())


def _make_cpu_balancer(num_experts: int, top_k: int) -> Balancer:
    """A balancer has few numbers but needs them: it checks its target loads."""
    with torch.device("cpu"):
        return balancer("none", num_experts, top_k=top_k)
