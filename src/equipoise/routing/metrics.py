"""How uneven loads are, in the measures people report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.routing.checks import is_readable


def metrics(
    loads: Tensor | Sequence[int], target: Tensor | Sequence[float] | None = None
) -> dict[str, float]:
    """The imbalance of loads (E,), as numbers. For many loads at once, or without making a GPU
    wait, there is `equipoise.routing.load_metrics`.

    With r_k = load_k / target_k, where target_k is the even share unless weights are given in
    `target`:

        imbalance          mean |r_k - 1|            the paper's overall imbalance
        max_violation      max r_k - 1               DeepSeek's MaxVio: 0 perfect, E/K - 1 the worst
        min_violation      min r_k - 1               0 is perfect, -1 a dead expert
        cv                 std(r) / mean(r)          coefficient of variation
        effective_experts  exp(entropy of r)         E is perfect, 1 is collapse
        dead_experts       how many received nothing

    Where no token was counted there is nothing to measure: every value is 0.

    Args:
        loads: (E,) tokens that each expert got.
        target: (E,) weights of unequal loads.

    Example:
        >>> metrics([4, 2, 2, 0])["imbalance"]
        0.5
    """
    loads = torch.as_tensor(loads)
    if loads.dim() != 1:
        raise ValueError(
            f"metrics takes the loads of one layer, (experts,), not {tuple(loads.shape)}: "
            "equipoise.routing.load_metrics takes many at once, and returns tensors"
        )
    found = load_metrics(loads, target)
    # one transfer for all of them
    return dict(zip(found, torch.stack([*found.values()]).tolist(), strict=True))


def load_metrics(
    loads: Tensor | Sequence[Any], target: Tensor | Sequence[float] | None = None
) -> dict[str, Tensor]:
    """`metrics` of many loads at once. Nothing here makes a GPU wait.

    Args:
        loads: (..., E), or what `device_loads` and `sequence_loads` return.
        target: (E,) weights of the loads that experts should have; even by default.

    Returns:
        The same names, as float64 tensors of the leading shape, on the device of the loads.

    Example:
        >>> load_metrics([[3, 1], [2, 2]])["max_violation"].tolist()
        [0.5, 0.0]
    """
    loads = checked_loads(loads)
    relative = _relative_loads(loads, target)
    share = relative / relative.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    # not "> 0": NaN loads that were not looked at, on a GPU, must not measure 0
    some = loads.sum(-1) != 0
    values = {
        "imbalance": (relative - 1).abs().mean(-1),
        "max_violation": relative.amax(-1) - 1,
        "min_violation": relative.amin(-1) - 1,
        "cv": relative.std(-1, correction=0) / relative.mean(-1),
        "effective_experts": torch.special.entr(share).sum(-1).exp(),
        "dead_experts": (loads == 0).sum(-1).double(),
    }
    return {name: torch.where(some, value, 0.0) for name, value in values.items()}


def checked_loads(loads: Tensor | Sequence[Any]) -> Tensor:
    """Loads as a tensor, refused where they can be looked at and count nothing."""
    loads = torch.as_tensor(loads)
    if is_readable(loads) and not (torch.isfinite(loads) & (loads >= 0)).all():
        raise ValueError(
            f"loads count tokens: finite numbers, 0 or more, not {loads.flatten().tolist()[:8]}"
        )
    return loads


def _relative_loads(loads: Tensor, target: Tensor | Sequence[float] | None) -> Tensor:
    """r (..., E) float64: each load over its target load."""
    weights = torch.ones(loads.shape[-1], dtype=torch.float64, device=loads.device)
    if target is not None:
        weights = torch.as_tensor(target, dtype=torch.float64, device=loads.device)
        if weights.shape != loads.shape[-1:]:
            raise ValueError(
                f"target has shape {tuple(weights.shape)}, but there are {loads.shape[-1]} experts"
            )
        if is_readable(weights) and not (weights > 0).all():
            raise ValueError(f"target weights must be positive, not {weights.tolist()}")
    total = loads.sum(-1, keepdim=True).double()
    return loads.double() * weights.sum() / (total * weights)
