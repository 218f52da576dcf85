"""Scores and gates as megatron-core computes them, with the choice of experts left open.

Megatron's function for this chooses and weighs at once, and in its releases before 0.20 there is no
way to give it the choice. So its arithmetic stands here a second time; the tests hold it to the
original, digit by digit, wherever no shift is applied.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.routing import Groups

_NO_DIVISION_BY_ZERO = 1e-20  # Megatron's own


class GateSettings(NamedTuple):
    """What decides a token's scores and gates, from Megatron's config."""

    top_k: int
    score_function: str
    pre_softmax: bool
    """gates are the softmax over all experts; else over the chosen ones"""
    scaling_factor: float | None
    groups: Groups | None


def expert_scores(settings: GateSettings, logits: Tensor) -> Tensor:
    """(T, E) logits to float32 scores, by which experts are chosen. Carries gradients."""
    if settings.score_function == "softmax":
        return torch.softmax(logits, dim=-1, dtype=torch.float32)
    if settings.score_function == "sigmoid":
        return torch.sigmoid(logits.float())
    return F.softplus(logits.float()).sqrt()


def chosen_gates(settings: GateSettings, logits: Tensor, scores: Tensor, experts: Tensor) -> Tensor:
    """(T, K) gates of the chosen experts, in the dtype of the logits. No shift is in them."""
    if settings.score_function == "softmax" and not settings.pre_softmax:
        gates = torch.softmax(logits.gather(1, experts), dim=-1, dtype=torch.float32)
    else:
        gates = scores.gather(1, experts)
        if settings.score_function != "softmax" and settings.top_k > 1:
            gates = gates / (gates.sum(dim=-1, keepdim=True) + _NO_DIVISION_BY_ZERO)
    if settings.scaling_factor:
        gates = gates * settings.scaling_factor
    return gates.type_as(logits)


def spread_over_experts(gates: Tensor, experts: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """(T, K) gates and experts to what Megatron's dispatchers take: (T, E) gates with zeros, and
    (T, E) bool.
    """
    empty = gates.new_zeros(len(gates), num_experts)
    chosen = torch.zeros_like(empty, dtype=torch.bool).scatter(1, experts, True)
    return empty.scatter(1, experts, gates), chosen
