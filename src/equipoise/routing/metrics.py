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
    """`metrics` of loads (..., E), as float64 tensors of the leading shape, on the device of the
    loads. Nothing here makes a GPU wait.
    """
    loads = _checked_loads(loads)
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


def idle_share(loads: Tensor | Sequence[Any], devices: int | Sequence[int]) -> Tensor:
    """The fraction of device time lost waiting for the fullest device, under expert parallelism.

    Every forward lasts as long as its fullest device; a device works in proportion to the tokens of
    its experts. So over forwards, 1 - sum of mean device loads / sum of greatest device loads.

    Args:
        loads: (E,) of one forward, or (M, E) of several (`Tally.forwards`). The sum over forwards
            would hide the waiting.
        devices: how many, each with an equal block of consecutive experts; or the device of every
            expert, as E numbers.

    Example:
        >>> float(idle_share([30, 10, 10, 10], devices=2))
        0.25
    """
    loads = _checked_loads(loads).double()
    loads = loads.reshape(-1, loads.shape[-1])
    per_device = _device_loads(loads, devices)
    fullest = per_device.amax(1).sum()
    return torch.where(
        fullest > 0,
        1 - per_device.mean(1).sum() / fullest.clamp_min(torch.finfo(torch.float64).tiny),
        0.0,
    )


def _checked_loads(loads: Tensor | Sequence[Any]) -> Tensor:
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


def _device_loads(loads: Tensor, devices: int | Sequence[int]) -> Tensor:
    """(M, devices): tokens of each device, from loads (M, E)."""
    num_experts = loads.shape[1]
    if isinstance(devices, int):
        if devices < 1 or num_experts % devices:
            raise ValueError(
                f"{num_experts} experts do not divide over {devices} devices: pass the device of "
                "every expert instead"
            )
        return loads.unflatten(1, (devices, -1)).sum(2)
    if len(devices) != num_experts:
        raise ValueError(
            f"{len(devices)} devices are named for {num_experts} experts: name one for each"
        )
    names, places = torch.unique(torch.as_tensor(devices), return_inverse=True)
    empty = torch.zeros(loads.shape[0], len(names), dtype=loads.dtype, device=loads.device)
    return empty.index_add_(1, places.to(loads.device), loads)
