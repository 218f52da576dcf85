"""Loads of devices under expert parallelism, and what waiting for the fullest one costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.routing.metrics import checked_loads


def default_devices(num_experts: int) -> int:
    """Eight if they divide the experts, else the greatest number below that does."""
    return next(number for number in range(8, 0, -1) if num_experts % number == 0)


def check_devices(devices: object) -> None:
    """Refuse what is neither a number of devices nor the device of every expert."""
    if isinstance(devices, bool) or not isinstance(devices, int | Sequence | Tensor | np.ndarray):
        raise TypeError(
            f"devices is a whole number, or the device of every expert, not {devices!r}"
        )


def device_loads(loads: Tensor | Sequence[Any], devices: int | Sequence[int] | Tensor) -> Tensor:
    """The tokens that each device works on: the loads of its experts, added up.

    A token that takes two experts of one device is two tokens there.

    Args:
        loads: (..., E), such as `Tally.forwards`.
        devices: how many, each with an equal block of consecutive experts; or the device of every
            expert, as E numbers. Devices then come in ascending order of their numbers, and one
            without experts is left out.

    Returns:
        (..., D) in the dtype of the loads.

    Example:
        >>> device_loads([30, 10, 10, 10], devices=2).tolist()
        [40, 20]
    """
    loads = checked_loads(loads)
    check_devices(devices)
    num_experts = loads.shape[-1]
    if isinstance(devices, int):
        if devices < 1 or num_experts % devices:
            raise ValueError(
                f"{num_experts} experts do not divide over {devices} devices: pass the device of "
                "every expert instead"
            )
        return loads.unflatten(-1, (devices, -1)).sum(-1)
    if len(devices) != num_experts:
        raise ValueError(
            f"{len(devices)} devices are named for {num_experts} experts: name one for each"
        )
    names, places = torch.unique(torch.as_tensor(devices), return_inverse=True)
    empty = loads.new_zeros(*loads.shape[:-1], len(names))
    return empty.index_add_(-1, places.to(loads.device), loads)


def idle_share(loads: Tensor | Sequence[Any], devices: int | Sequence[int] | Tensor) -> Tensor:
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
    loads = checked_loads(loads).double()
    loads = loads.reshape(-1, loads.shape[-1])
    per_device = device_loads(loads, devices)
    fullest = per_device.amax(1).sum()
    return torch.where(
        fullest > 0,
        1 - per_device.mean(1).sum() / fullest.clamp_min(torch.finfo(torch.float64).tiny),
        0.0,
    )
