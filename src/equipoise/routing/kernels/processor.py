"""The operators on the CPU: torch's tensors as numpy arrays, on as many threads as torch uses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

_log = logging.getLogger("equipoise.kernels")
_PATIENCE = 3.0
"""seconds: kernels from numba's cache are there sooner"""


def rank_on_processor(
    scores: Tensor, shift: Tensor | None, mask: Tensor | None, top_k: int, wanted: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Shifted scores and experts (T, wanted), best first, and loads (E,) of the first top_k."""
    rank, _, no_mask = _loaded_kernels()
    flat = _as_float32(scores)
    shift = (
        torch.zeros(scores.shape[1], dtype=torch.float32) if shift is None else _as_float32(shift)
    )
    found = rank(
        flat.numpy(),
        shift.numpy(),
        top_k,
        wanted,
        no_mask if mask is None else mask.contiguous().numpy(),
        torch.get_num_threads(),
    )
    return tuple(map(torch.from_numpy, found))  # type: ignore[return-value]


def bin_on_processor(
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
    _, count, no_mask = _loaded_kernels()
    counts = count(
        _as_float32(scores).numpy(),
        _as_float32(shift).numpy(),
        runner_up.contiguous().numpy(),
        _as_float32(margin).numpy(),
        no_mask if mask is None else mask.contiguous().numpy(),
        _as_float32(scale).numpy(),
        bins,
        flips=flips,
        stride=stride,
        threads=torch.get_num_threads(),
    )
    return torch.from_numpy(counts)


def _as_float32(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    # two calls that change nothing would be a tenth of a small batch's time
    if tensor.dtype is torch.float32 and tensor.is_contiguous():
        return tensor
    return tensor.to(torch.float32).contiguous()


@cache
def _loaded_kernels() -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    """numba's functions, called once, so that nothing compiles later in the middle of a training.

    numba keeps what it compiled on disk: only the first start on a machine waits.
    """
    line = (
        "still loading kernels for the CPU: the first start on a machine compiles them, later ones "
        "take them from numba's cache"
    )
    told = threading.Timer(_PATIENCE, _log.warning, [line])
    told.daemon = True
    told.start()
    try:
        from equipoise.selection.distances import count_distance_bins
        from equipoise.selection.rank import NO_MASK, rank_experts

        few, one = np.zeros((2, 2), np.float32), np.ones(2, np.float32)
        found = rank_experts(few, one, 1, 2)
        runner_up, margin = found.experts[:, 1].copy(), found.values[:, 1].copy()
        count_distance_bins(few, one, runner_up, margin, NO_MASK, one, 2, flips=True)
        return rank_experts, count_distance_bins, NO_MASK
    finally:
        told.cancel()
