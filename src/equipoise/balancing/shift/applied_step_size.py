"""The step size of an update that has happened: what multiplied each expert's gap.

The theorems are about the paper's update (eq. 7), in which expert k's shift moves by epsilon_k
times its gap L_k - A_k. Rules are not written like that: DeepSeek's adds u sign(gap), Moonlight's
also subtracts a mean, AdaGrad's divides by a history. But wherever a rule follows the gap,
epsilon_k can be read off from what happened:

    epsilon_k = (shift_after_k - shift_k) / (L_k - A_k),    0 where the gap is 0

Whether the shift really moved by epsilon_k times the gap (it did not if it moved where the gap is
0) is for the reader of a trace to judge, and equipoise.theorems does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.shift.directions import LoadGap
from equipoise.balancing.shift.dual import Dual


def applied_step_size(
    balancer: Balancer, loads: Tensor, shift: Tensor, shift_after: Tensor
) -> Tensor | None:
    """(E,) float64 on the CPU, for gaps in tokens; None for a balancer that does not follow the gap
    of loads: one that solves each batch, or reads more than loads (quantile, curvature).

    Args:
        balancer: that was updated.
        loads: (E,) that it was updated from.
        shift, shift_after: (E,) before and after.
    """
    if not isinstance(balancer, Dual) or not isinstance(balancer.direction, LoadGap):
        return None
    gap = balancer.target.gap(loads.to(balancer.target.weights.device)).cpu().double()
    moved = shift_after.cpu().double() - shift.cpu().double()
    return torch.where(gap != 0, moved / gap, 0.0)
