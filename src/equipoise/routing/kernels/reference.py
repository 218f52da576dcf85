"""The slow twins of the kernels, in plain torch: a stable sort, a gather, a scatter."""

from __future__ import annotations

import torch
from torch import Tensor


def rank_by_sorting(
    scores: Tensor, shift: Tensor | None, mask: Tensor | None, top_k: int, wanted: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Shifted scores and experts (T, wanted), best first, and loads (E,) of the first top_k.

    A stable sort keeps equal ones in the order of their index.
    """
    shifted = add_shift(scores, shift)
    values, order = shifted.sort(dim=1, descending=True, stable=True)
    values, experts = values[:, :wanted].contiguous(), order[:, :wanted].contiguous()
    return values, experts, count_loads(experts[:, :top_k], scores.shape[1], mask)


def add_shift(scores: Tensor, shift: Tensor | None) -> Tensor:
    """At least in float32: bf16 scores are lifted before the shift is added."""
    lifted = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return lifted if shift is None else lifted + shift


def count_loads(experts: Tensor, num_experts: int, mask: Tensor | None) -> Tensor:
    """(E,) int64 from (T, K) experts: tokens per expert, those of the mask left out.

    Exact, and without making a GPU wait as torch.bincount does.
    """
    chosen = experts.flatten()
    counted = (
        torch.ones_like(chosen)
        if mask is None
        else (~mask).long().repeat_interleave(experts.shape[1])
    )
    return torch.zeros(num_experts, dtype=torch.int64, device=experts.device).scatter_add_(
        0, chosen, counted
    )


def bin_distances(
    scores: Tensor,
    shift: Tensor,
    runner_up: Tensor,
    margin: Tensor,
    mask: Tensor | None,
    scale: Tensor,
    bins: int,
    flips: bool,
    stride: int,
) -> Tensor:
    """(E, bins + 2) int64: see `selection/distances.py`."""
    every = slice(None, None, stride)
    shifted, margin = add_shift(scores[every], shift), margin[every]
    distance = lead_over_runner_up(shifted, runner_up[every])
    distance = distance_to_flip(distance, margin) if flips else distance
    counted = torch.isfinite(margin) if mask is None else torch.isfinite(margin) & ~mask[every]
    return scatter_bins(distance, counted, scale, bins)


def lead_over_runner_up(shifted: Tensor, runner_up: Tensor) -> Tensor:
    """x_ik = gamma_ik + p_k - y_i, (T, E), from gamma + p (T, E) and the runner-ups (T,)."""
    return shifted - shifted.gather(1, runner_up.unsqueeze(1))


def distance_to_flip(lead: Tensor, margin: Tensor) -> Tensor:
    """(T, E): chosen experts lie above the runner-up, the others below the K-th choice, which is
    `margin` (T,) higher.
    """
    return torch.where(lead > 0, lead, lead - margin.unsqueeze(1))


def bins_per_distance(width: Tensor, bins: int) -> Tensor:
    """(E,): bins of equal size cover [-width, width]."""
    return bins / 2 / width


def scatter_bins(distance: Tensor, counted: Tensor, scale: Tensor, bins: int) -> Tensor:
    """(E, B + 2) int64: below, the bins, above; of distances (T, E), where counted (T,) is true."""
    num_experts = distance.shape[1]
    # two roundings in this order, in every back end: the same bin to the last token
    place = distance * scale + (bins // 2 + 1)
    # to a whole number is floor, since nothing is negative after the clamp
    place = place.clamp(0, bins + 1).to(torch.int64)
    place = place + torch.arange(num_experts, device=distance.device) * (bins + 2)
    each = counted.to(torch.int64).unsqueeze(1).expand_as(place)
    empty = torch.zeros(num_experts * (bins + 2), dtype=torch.int64, device=distance.device)
    return empty.scatter_add(0, place.flatten(), each.flatten()).view(num_experts, -1)
