"""Every token's best experts under a shift, in order, and how many tokens each expert received.

    values, experts, loads = rank_experts(scores, shift, top_k, wanted, mask)

One pass over the scores: tokens are sorted and counted block by block, in the nearest cache
(best.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.selection.best import (
    EVERY_TOKEN,
    BlockPlan,
    block_memory,
    plan_blocks,
    sort_packed,
)
from equipoise.selection.packed import exact_kernel, expert_of, score_of
from equipoise.selection.threads import run_in_parts
from equipoise.storage.arrays import Array

_MIN_PART_SCORES = 1 << 17
"""below this many scores a second thread costs more than it brings"""


class Ranked(NamedTuple):
    """The best experts of every token: `wanted` of them, the first `top_k` of which count."""

    values: Array
    """(T, wanted) float32: shifted scores, highest first"""
    experts: Array
    """(T, wanted) int64: of equal ones the lowest first"""
    loads: Array
    """(E,) int64: tokens among whose first top_k an expert is; padding left out"""


@exact_kernel
def _rank_part(
    scores: Array,
    shift: Array,
    mask: Array,
    top_k: int,
    plan: BlockPlan,
    start: int,
    stop: int,
    values: Array,
    experts: Array,
    loads: Array,
) -> None:
    E, memory = scores.shape[1], block_memory(scores, plan)
    best, bits = memory.best, memory.best.view(np.int64)
    for begin in range(start, stop, plan.lanes):
        count = min(plan.lanes, stop - begin)
        # unpacked on the way to where they are wanted
        sort_packed(scores, shift, EVERY_TOKEN, begin, count, memory)
        for j in range(count):
            padding = mask.size > 0 and mask[begin + j]
            for r in range(plan.wanted):
                expert = expert_of(bits[r, j], E)
                experts[begin + j, r] = expert
                values[begin + j, r] = score_of(best[r, j])
                if r < top_k and not padding:
                    loads[expert] += 1


NO_MASK = np.empty(0, np.bool_)
"""in place of a mask: no token is padding"""


def rank_experts(
    scores: Array,
    shift: Array,
    top_k: int,
    wanted: int,
    mask: Array = NO_MASK,
    threads: int | None = None,
) -> Ranked:
    """The `wanted` best experts of each token by scores + shift, in float32.

    Args:
        scores: (T, E) float32, its rows contiguous.
        shift: (E,) float32.
        top_k: how many of them are chosen and counted.
        wanted: K, or K + 1 for the runner-up; at most E.
        mask: (T,) bool, True for padding, which is ranked but not counted.
        threads: how many may work; by default as many as numba may use.
    """
    T, E = scores.shape
    values, experts = np.empty((T, wanted), np.float32), np.empty((T, wanted), np.int64)
    plan = plan_blocks(scores, wanted)
    loads: list[Array] = []

    def part(start: int, stop: int) -> None:
        counted = np.zeros(E, np.int64)
        _rank_part(scores, shift, mask, top_k, plan, start, stop, values, experts, counted)
        loads.append(counted)

    run_in_parts(T, part, least=max(1, _MIN_PART_SCORES // E), threads=threads)
    return Ranked(values, experts, np.asarray(np.sum(loads, axis=0)))
