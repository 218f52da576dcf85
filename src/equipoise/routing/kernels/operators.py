"""Two operators of torch: the choice with its loads, and histograms of distances.

    rank_experts         top-K of scores + shift, in order, and the loads          (eq. 8, eq. 6)
    bin_distances        how far experts are from being chosen, counted in bins

They are opaque to torch.compile and torch.export, which see only shapes, and carry no gradient:
gates are gathered from the scores by whoever calls them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from equipoise.routing.kernels import processor, reference
from equipoise.routing.kernels.backends import backend_for

library = torch.library.Library("equipoise", "DEF")
library.define(
    "rank_experts(Tensor scores, Tensor? shift, Tensor? mask, int top_k, int wanted)"
    " -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
library.define(
    "bin_distances(Tensor scores, Tensor shift, Tensor runner_up, Tensor margin, Tensor? mask,"
    " Tensor scale, int bins, bool flips, int stride) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def rank_experts(
    scores: Tensor, shift: Tensor | None, mask: Tensor | None, top_k: int, wanted: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The `wanted` best experts of each token by scores + shift, and the loads of the first top_k.

    Args:
        scores: (T, E) floating point. The sum is formed in float32, or float64 where scores are.
        shift: (E,), or None.
        mask: (T,) bool, True for padding, which is ranked but not counted.
        top_k: K.
        wanted: K, or K + 1 for the runner-up.

    Returns:
        Shifted scores (T, wanted), highest first; their experts (T, wanted) int64, of equal ones
        the lowest first; loads (E,) int64.
    """
    return torch.ops.equipoise.rank_experts(scores, shift, mask, top_k, wanted)


def best_experts(values: Tensor, top_k: int) -> Tensor:
    """(..., K) int64: the experts of the highest `values` (..., E), best first."""
    flat = values.detach().flatten(0, -2)
    return rank_experts(flat, None, None, top_k, top_k)[1].unflatten(0, values.shape[:-1])


def bin_distances(
    scores: Tensor,
    shift: Tensor,
    runner_up: Tensor,
    margin: Tensor,
    mask: Tensor | None,
    scale: Tensor,
    bins: int,
    *,
    flips: bool,
    stride: int = 1,
) -> Tensor:
    """(E, bins + 2) int64: how many of every `stride`-th token lie at each distance.

    Args:
        scores: (T, E); shift: (E,); mask: (T,) bool, True for padding, or None.
        runner_up: (T,) int64, the first expert left out; margin: (T,), inf where there is none.
        scale: (E,) bins per distance, bins / 2 / width; the bins reach from -width to width.
        flips: measure from the K-th choice where an expert is not chosen; else from the runner-up.
    """
    return torch.ops.equipoise.bin_distances(
        scores, shift, runner_up, margin, mask, scale, bins, flips, stride
    )


def _rank_experts(
    scores: Tensor, shift: Tensor | None, mask: Tensor | None, top_k: int, wanted: int
) -> tuple[Tensor, Tensor, Tensor]:
    name = backend_for(scores, wanted, shift)
    return _BACK_ENDS[name]()[0](scores, shift, mask, top_k, wanted)


def _bin_distances(
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
    name = backend_for(scores, 1, shift, margin, scale)
    count = _BACK_ENDS[name]()[1]
    return count(scores, shift, runner_up, margin, mask, scale, bins, flips, stride)


def _gpu_kernels() -> tuple[Callable[..., Any], Callable[..., Any]]:
    # triton is imported only where it runs
    from equipoise.routing.kernels.gpu.launch import bin_on_gpu, rank_on_gpu

    return rank_on_gpu, bin_on_gpu


_BACK_ENDS: dict[str, Callable[[], tuple[Callable[..., Any], Callable[..., Any]]]] = {
    "reference": lambda: (reference.rank_by_sorting, reference.bin_distances),
    "processor": lambda: (processor.rank_on_processor, processor.bin_on_processor),
    "triton": _gpu_kernels,
}


library.impl("rank_experts", _rank_experts, "CompositeExplicitAutograd")
library.impl("bin_distances", _bin_distances, "CompositeExplicitAutograd")


@torch.library.register_fake("equipoise::rank_experts", lib=library)
def _rank_shapes(
    scores: Tensor, shift: Tensor | None, mask: Tensor | None, top_k: int, wanted: int
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, num_experts = scores.shape
    kind = torch.promote_types(scores.dtype, torch.float32)
    kind = kind if shift is None else torch.promote_types(kind, shift.dtype)
    return (
        scores.new_empty((tokens, wanted), dtype=kind),
        scores.new_empty((tokens, wanted), dtype=torch.int64),
        scores.new_empty((num_experts,), dtype=torch.int64),
    )


@torch.library.register_fake("equipoise::bin_distances", lib=library)
def _bin_shapes(
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
    return scores.new_empty((scores.shape[1], bins + 2), dtype=torch.int64)
