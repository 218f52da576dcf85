"""The step size that a rule says it used: what multiplied each expert's gap.

The theorems are about the paper's update (eq. 7), in which expert k's shift moves by epsilon_k
times its gap L_k - A_k. Rules are not written like that: DeepSeek's adds u sign(gap), Moonlight's
also subtracts a mean, AdaGrad's divides by a history. But wherever a rule follows the gap, its own
step tells epsilon_k:

    epsilon_k = step_k / (L_k - A_k),    0 where the gap is 0

The step is what the rule computed from its tally (`Dual.last_step`), not the difference of the
shifts: whether the shift really moved by it is for the reader of a trace to judge, and
equipoise.theorems does. Mirror descent does not add its step to the shift, so it has no step size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.shift.directions import LoadGap
from equipoise.balancing.shift.dual import Dual


def stated_step_size(balancer: Balancer, loads: Tensor) -> Tensor | None:
    """(E,) float64 on the CPU, for gaps in tokens. None for a balancer that does not follow the gap
    of loads: one that solves each batch, reads more than loads (quantile, curvature), or does not
    add its step (mirror); and for one that was not updated yet.

    Args:
        balancer: that was updated.
        loads: (E,) that it was updated from.
    """
    if not isinstance(balancer, Dual) or not isinstance(balancer.direction, LoadGap):
        return None
    if balancer.last_step is None:
        return None
    gap = balancer.target.gap(loads.to(balancer.target.weights.device)).cpu().double()
    return torch.where(gap != 0, balancer.last_step.cpu().double() / gap, 0.0)
