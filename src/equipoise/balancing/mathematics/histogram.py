"""Each expert's own quantile, read from a histogram.

Distances x_ik of tokens from being chosen are counted, for each expert, in B equal bins over
[-width_k, width_k] and one more on either side for what falls outside. Counts add up over
micro-batches and ranks, where sorted lists would not. quantile.py and flips.py say which distances
are counted and why their quantile is where the load is right.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FIRST_WIDTH = 1.0
"""scores in [0, 1] cannot lead by more"""
_GROWTH = 4.0  # of the width, where the quantile fell outside it
_LEAST_WIDTH, _MOST_WIDTH = 1e-6, 16.0
_REACH = 4.0  # bins cover the ranks from L / 4 to 4 L


def within_groups(distance: Tensor, group_margin: Tensor) -> Tensor:
    """The lesser of an expert's own distance (T, E) and its group's (T, G)."""
    by_group = distance.unflatten(1, (group_margin.shape[1], -1))
    return torch.minimum(by_group, group_margin.unsqueeze(2)).flatten(1)


def counts_from_top(counts: Tensor) -> Tensor:
    """(E, B + 2) float64: tokens in the highest bin, in the highest two, ..., in all."""
    return counts.flip(1).cumsum(1).double()


def distance_of_rank(from_top: Tensor, rank: Tensor, width: Tensor) -> Tensor:
    """(E, R): the rank-th largest of each expert, interpolated within its bin."""
    bins = from_top.shape[1] - 2
    rank = torch.minimum(rank.clamp_min(1), from_top[:, -1:])
    place = torch.searchsorted(from_top, rank)
    above = torch.where(place > 0, from_top.gather(1, (place - 1).clamp_min(0)), 0.0)
    inside = (from_top.gather(1, place) - above).clamp_min(1)
    # 0 at the top of the bin
    deep = (rank - above - 0.5) / inside
    # the upper edge of bin b is b, the lower b - 1
    edge = (bins + 1 - place - deep) / bins * 2 - 1
    return edge.clamp(-1.0, 1.0) * width.unsqueeze(1)


def quantile_move(
    from_top: Tensor, want: Tensor, width: Tensor, slack: float
) -> tuple[Tensor, Tensor]:
    """The move to the middle between the L-th and the (L + 1)-th distance, and the next widths.

    Args:
        from_top: (E, B + 2), see counts_from_top.
        want: (E,) float64, the target loads L.
        width: (E,), what the bins reach to.
        slack: how many times wider than needed the next bins reach.
    """
    ranks = torch.stack((want.ceil(), want.floor() + 1, want / _REACH, want * _REACH), dim=1)
    here, next_, top, bottom = distance_of_rank(from_top, ranks, width).unbind(1)
    middle = (here + next_) / 2
    # the number of tokens is the same for every expert
    some = from_top[:, -1] > 0
    bins = from_top.shape[1] - 2
    widths = torch.where(some, _next_width(middle, top, bottom, width, bins, slack), width)
    return torch.where(some, -middle, 0.0), widths.to(width.dtype)


def _next_width(
    middle: Tensor, top: Tensor, bottom: Tensor, width: Tensor, bins: int, slack: float
) -> Tensor:
    """As wide as the ranks from L / 4 to 4 L need; fourfold where the quantile fell outside."""
    bin_width = 2 * width / bins
    covering = torch.maximum(top - middle, middle - bottom) + 2 * bin_width
    outside = middle.abs() >= width - bin_width
    return torch.where(outside, width * _GROWTH, slack * covering).clamp(_LEAST_WIDTH, _MOST_WIDTH)


def slope_at_target(from_top: Tensor, want: Tensor, width: Tensor) -> Tensor:
    """(E,): the share of tokens an expert gains per unit of its own shift, between half and twice
    its target load.

    Ranks fall off exponentially there, rank(x) = L exp(-x / s), so that the slope at L is
    L log(4) / (x(L/2) - x(2L)).
    """
    bins = from_top.shape[1] - 2
    ranks = torch.stack((want / 2, want * 2), dim=1)
    top, bottom = distance_of_rank(from_top, ranks, width).unbind(1)
    share = want / from_top[:, -1].clamp_min(1)
    return math.log(4) * share / (top - bottom).clamp_min(2 * width / bins)


def reach_of_flips(from_top: Tensor, flipped: Tensor, leeway: float, width: Tensor) -> Tensor:
    """(E,): how far each shift must move to flip twice the share `flipped` (E,) of tokens, and
    `leeway` tokens more.
    """
    # all bins above 0
    chosen = from_top[:, (from_top.shape[1] - 2) // 2]
    more = 2 * flipped.abs() * from_top[:, -1] + leeway
    rank = torch.where(flipped > 0, chosen + more, chosen + 1 - more)
    return distance_of_rank(from_top, rank.unsqueeze(1), width).squeeze(1).abs()
