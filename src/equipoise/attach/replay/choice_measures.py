"""How a choice was made, beyond which experts it took: for two recordings to be compared by.

A margin alone does not say whether rounding explains a difference: 0.004 is much among scores of
0.01 and nothing among logits of 20. So the level is kept too, and the gates, which say how much of
a token's output hangs on an expert.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.attach.find.routing_spec import RoutingSpec


class ChoiceMeasures(NamedTuple):
    """Of one forward, in float32."""

    margins: Tensor
    """(T,) between the last that the router would choose and the next"""
    levels: Tensor
    """(T,) the larger magnitude of these two"""
    gates: Tensor
    """(T, K) of the experts taken, from their own scores, with sum 1"""


def measure_choice(
    ranked: Tensor,
    scores: Tensor,
    taken: Tensor,
    spec: RoutingSpec,
    shift: Tensor | None,
    bias: Tensor | None,
) -> ChoiceMeasures:
    """Measure one run of a router.

    Args:
        ranked: (..., E) what it ranked.
        scores: (..., E) the same before groups were masked, where gates come from.
        taken: (T, K) the experts that were taken.
        spec: how it chooses.
        shift: (E,) what was added before the choice, and is not in `ranked`.
        bias: (E,) what the model has added, and is in both.
    """
    values = ranked.detach().reshape(-1, spec.num_experts).float()
    own = scores.detach().reshape(-1, spec.num_experts).float()
    gates = _share_gates(own if bias is None else own - bias.to(own.device), taken, spec)
    if shift is not None:
        shifted = values + shift.to(values.device)
        values = shifted.masked_fill(values == 0, -torch.inf) if spec.fill == 0 else shifted
    best = values.topk(min(spec.top_k + 1, spec.num_experts), dim=-1).values
    kth, following = best[:, spec.top_k - 1], best[:, -1]
    if spec.num_experts == spec.top_k:
        return ChoiceMeasures(torch.full_like(kth, torch.inf), kth.abs(), gates)
    levels = torch.where(following.isinf(), kth.abs(), torch.maximum(kth.abs(), following.abs()))
    return ChoiceMeasures(kth - following, levels, gates)


def _share_gates(scores: Tensor, taken: Tensor, spec: RoutingSpec) -> Tensor:
    """Scores of the experts taken, divided by their sum; where logits are ranked, their softmax."""
    chosen = scores.gather(1, taken)
    if spec.score == "identity":
        return chosen.softmax(1)
    # an expert of a group that was masked counts nothing
    chosen = chosen.clamp_min(0)
    return chosen / chosen.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
