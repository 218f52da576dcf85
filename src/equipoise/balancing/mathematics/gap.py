"""How far loads are from their target. With weights w_k, an expert should have the load
L_k = K T w_k / sum(w); the paper's L = K T / E is the even share.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-14
"""of all choices, for each expert: what weights such as 0.1 leave; far below one token of 10^13"""


def wanted_loads(total: Tensor, weights: Tensor, weight_sum: float) -> Tensor:
    """(E,) float64: the loads that `total` choices should give."""
    return total * weights / weight_sum


def load_gap(loads: Tensor, weights: Tensor, weight_sum: float) -> Tensor:
    """L - A, (E,) float64, from loads (E,) int64: positive where an expert has too few.

    Whole numbers are subtracted before anything is divided, so that a balanced expert has a gap of
    exactly 0 even where T K / E is not a whole number (49 * (1 / 49) is not 1).
    """
    total = loads.sum()
    # in float64: a number times whole ones would be of torch's default dtype, and float32 is not
    # exact beyond 16.7 million choices
    gap = (total * weights - weight_sum * loads.double()) / weight_sum
    # weights such as 0.1 are rounded, and so is their sum: what that leaves is no gap
    return torch.where(gap.abs() <= ROUNDING * total.double(), 0.0, gap)


def token_count(loads: Tensor, top_k: int) -> Tensor:
    """T, (): the tokens behind these loads; at least 1, so that it can divide."""
    return (loads.sum().float() / top_k).clamp_min(1.0)
