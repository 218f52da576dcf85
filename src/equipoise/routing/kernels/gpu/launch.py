"""The operators on a GPU: outputs are made, and the kernel for the shape is launched.

Which launch a shape gets stands in one table, so that nothing is tuned in a training. Not run on a
GPU yet: the kernels are tested in Triton's interpreter and compiled for sm_80, sm_90 and sm_100.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from equipoise.routing.kernels.gpu.bins_kernel import bins_kernel
from equipoise.routing.kernels.gpu.rank_kernel import rank_kernel


class Launch(NamedTuple):
    """How the kernels run for a number of experts."""

    warps: int
    tokens: int
    """that a program takes, one after the other"""


LAUNCHES = {1024: Launch(1, 4), 2048: Launch(2, 2), 4096: Launch(4, 1)}
"""by the most columns that it is for"""


def launch_for(num_experts: int) -> Launch:
    columns = triton.next_power_of_2(num_experts)
    return next(launch for most, launch in LAUNCHES.items() if columns <= most)


def rank_constants(num_experts: int, top_k: int, wanted: int) -> dict[str, object]:
    """What `rank_kernel` must know of a shape when it is compiled."""
    launch = launch_for(num_experts)
    lanes = 32 * launch.warps
    return {
        "E": num_experts,
        "LANES": lanes,
        "NETWORK": sorting_network(triton.cdiv(num_experts, lanes)),
        "TOP_K": top_k,
        "WANTED": wanted,
        "SLOTS": max(lanes, triton.next_power_of_2(wanted)),
        "TOKENS": launch.tokens,
    }


@cache
def sorting_network(length: int) -> tuple[int, ...]:
    """Pairs of places, one after the other, that sort a column when exchanged: merge exchange.

    Knuth, The Art of Computer Programming 3, algorithm 5.2.2 M (Batcher); 19 pairs for 8 places.
    """
    pairs: list[int] = []
    largest = 1 << max(length - 1, 0).bit_length() >> 1
    span = largest
    while span:
        for distance, remainder in _rounds(span, largest):
            for upper in range(length - distance):
                if upper & span == remainder:
                    pairs += (upper, upper + distance)
        span >>= 1
    return tuple(pairs)


def _rounds(span: int, largest: int) -> list[tuple[int, int]]:
    """Distance and remainder of the comparisons that merge sorted parts: steps M3 to M5."""
    rounds, other = [(span, 0)], largest
    while other != span:
        rounds.append((other - span, span))
        other >>= 1
    return rounds


def rank_on_gpu(
    scores: Tensor, shift: Tensor | None, mask: Tensor | None, top_k: int, wanted: int
) -> tuple[Tensor, ...]:
    """Shifted scores and experts (T, wanted), best first, and loads (E,) of the first top_k."""
    return choose_on_gpu(scores, shift, mask, "none", top_k, wanted)[1:]


def choose_on_gpu(
    logits: Tensor, shift: Tensor | None, mask: Tensor | None, score: str, top_k: int, wanted: int
) -> tuple[Tensor, ...]:
    """Gates (T, top_k) of score(logits), then values, experts and loads as above."""
    logits = logits.contiguous()
    tokens, num_experts = logits.shape
    # "none" has no gates of its own: whoever has scores gathers them
    gates = logits.new_empty((tokens, 0 if score == "none" else top_k), dtype=torch.float32)
    values = logits.new_empty((tokens, wanted), dtype=torch.float32)
    experts = logits.new_empty((tokens, wanted), dtype=torch.int64)
    loads = logits.new_zeros(num_experts, dtype=torch.int64)
    launch = launch_for(num_experts)
    if tokens:
        rank_kernel[(triton.cdiv(tokens, launch.tokens),)](
            logits,
            logits if shift is None else shift.float().contiguous(),
            _as_bytes(mask, logits),
            values if score == "none" else gates,
            values,
            experts,
            loads,
            tokens,
            **rank_constants(num_experts, top_k, wanted),
            SCORE=score.replace("-", "_"),
            SHIFTED=shift is not None,
            MASKED=mask is not None,
            num_warps=launch.warps,
            enable_fp_fusion=False,
        )
    return gates, values, experts, loads


def bin_on_gpu(
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
    scores = scores.contiguous()
    tokens, num_experts = scores.shape
    counts = scores.new_zeros((num_experts, bins + 2), dtype=torch.int32)
    launch = launch_for(num_experts)
    if tokens:
        bins_kernel[(triton.cdiv(tokens, stride * launch.tokens),)](
            scores,
            shift.float().contiguous(),
            runner_up.contiguous(),
            margin.float().contiguous(),
            _as_bytes(mask, scores),
            scale.float().contiguous(),
            counts,
            tokens,
            stride,
            E=num_experts,
            COLUMNS=triton.next_power_of_2(num_experts),
            SAMPLES=launch.tokens,
            MASKED=mask is not None,
            BINS=bins,
            FLIPS=flips,
            num_warps=launch.warps,
            enable_fp_fusion=False,
        )
    return counts.long()


def _as_bytes(mask: Tensor | None, instead: Tensor) -> Tensor:
    """A pointer to something where there is no mask: the kernel does not look."""
    return instead if mask is None else mask.contiguous().view(torch.uint8)
