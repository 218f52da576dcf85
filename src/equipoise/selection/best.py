"""The best experts of a block of tokens, in order: what ranking, boundary and choice all rest on.

    plan = plan_blocks(scores, wanted)
    memory = block_memory(scores, plan)                           # in a kernel, as all below
    best_experts(scores, shift, tokens, begin, count, memory)
    memory.values[r, j], memory.experts[r, j]                     # the r-th best of the j-th token

Among equal shifted scores the lowest expert comes first. float32 scores are packed with their index
and sorted in one network (packed.py); float64 has no bits to spare, and is sorted by insertion.
Where experts are many, only the few that can be among the best are sorted (candidates.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.selection.candidates import group_count, group_maxima, list_reaching
from equipoise.selection.packed import (
    exact_kernel,
    expert_of,
    pack_tokens,
    packable,
    score_of,
    sort_best,
    with_index,
)
from equipoise.storage.arrays import Array

_L1_BYTES = 32768
"""of a block of packed scores; the column of the best lies beside it"""
_MANY_PACKED = 96
"""from there on it is faster to find candidates first"""
_FEW_LANES = 32
"""tokens in a block of which only candidates are sorted"""

EVERY_TOKEN = np.empty(0, np.int64)
"""in place of a list of tokens: all of them, in order"""


class BlockPlan(NamedTuple):
    """How blocks are taken."""

    wanted: int
    groups: int
    """of which maxima are taken; 0 where all experts are sorted"""
    lanes: int
    """tokens in a block"""
    packs: bool
    """whether the scores are float32"""


class BlockMemory(NamedTuple):
    """What a thread needs for a block: its answer, and room to find it."""

    values: Array
    """(wanted, lanes) shifted scores, in the scores' type"""
    experts: Array
    """(wanted, lanes) int64"""
    packs: bool
    most: Array
    """(G,) one token's maxima of groups; empty where all experts are sorted"""
    groups: Array
    """(G, lanes) every token's"""
    floors: Array
    """(wanted, lanes) the largest of these"""
    rising: Array
    """(4, lanes) floors in the making"""
    found: Array
    """(E,) one token's candidates"""
    block: Array
    """(E, lanes) float64, the packed; rows a multiple of four"""
    best: Array
    """(wanted, lanes) float64, the best of them"""
    sinking: Array
    """(4, lanes) float64"""


def plan_blocks(scores: Array, wanted: int) -> BlockPlan:
    """For these scores; `wanted` is at most E."""
    E, packs = scores.shape[1], bool(scores.dtype == np.float32)
    groups = group_count(E, wanted) if E >= _MANY_PACKED or not packs else 0
    lanes = _FEW_LANES if groups else max(16, min(64, _L1_BYTES // (E * 8) // 16 * 16))
    return BlockPlan(wanted, groups, lanes, packs)


@exact_kernel
def block_memory(scores: Array, plan: BlockPlan) -> BlockMemory:
    """Room for one thread. (Made in a kernel: from Python it would cost as much as 64 tokens.)"""
    E, (wanted, groups, lanes, packs), dtype = scores.shape[1], plan, scores.dtype
    return BlockMemory(
        np.empty((wanted, lanes), dtype),
        np.empty((wanted, lanes), np.int64),
        packs,
        np.empty(groups, dtype),
        np.full((groups, lanes), -np.inf, dtype),
        np.empty((wanted, lanes), dtype),
        np.empty((4, lanes), dtype),
        np.arange(E),
        np.full(((E + 3) // 4 * 4, lanes), -np.inf),
        np.empty((wanted, lanes)),
        np.empty((4, lanes)),
    )


@exact_kernel
def best_experts(
    scores: Array, shift: Array, tokens: Array, begin: int, count: int, memory: BlockMemory
) -> None:
    """The best of tokens begin..begin + count, of `tokens` or of all, into `memory`."""
    if memory.packs:
        sort_packed(scores, shift, tokens, begin, count, memory)
        _unpack_best(scores.shape[1], count, memory.best, memory.values, memory.experts)
    else:
        _sort_by_insertion(scores, shift, tokens, begin, count, memory)


@exact_kernel
def sort_packed(
    scores: Array, shift: Array, tokens: Array, begin: int, count: int, memory: BlockMemory
) -> None:
    """The best of float32 scores into memory.best, packed."""
    rows = len(memory.block)
    if len(memory.most):
        _find_floors(scores, shift, tokens, begin, count, memory)
        rows = _pack_candidates(scores, shift, tokens, begin, count, memory)
    else:
        bits = memory.block.view(np.int64)
        pack_tokens(scores, shift, tokens, begin, count, memory.block, bits)
    sort_best(memory.block[:rows], memory.best, memory.sinking)


@exact_kernel
def _find_floors(
    scores: Array, shift: Array, tokens: Array, begin: int, count: int, memory: BlockMemory
) -> None:
    """The last row of memory.floors: what each token's best experts reach."""
    most, groups = memory.most, memory.groups
    for j in range(count):
        row = scores[tokens[begin + j]] if tokens.size else scores[begin + j]
        group_maxima(row, shift, most)
        for g in range(len(most)):
            groups[g, j] = most[g]
    sort_best(groups, memory.floors, memory.rising)


@exact_kernel
def _pack_candidates(
    scores: Array, shift: Array, tokens: Array, begin: int, count: int, memory: BlockMemory
) -> int:
    """The candidates of each token from the top of its column on; how many rows that fills."""
    E, found, block = scores.shape[1], memory.found, memory.block
    bits, floor = block.view(np.int64), memory.floors[-1]
    filled = np.zeros(block.shape[1], np.int64)
    for j in range(count):
        row = scores[tokens[begin + j]] if tokens.size else scores[begin + j]
        filled[j] = list_reaching(row, shift, floor[j], found)
        for c in range(filled[j]):
            k = found[c]
            block[c, j] = packable(row[k] + shift[k])
            bits[c, j] = with_index(bits[c, j], k, E)
    rows = (filled.max() + 3) // 4 * 4
    for j in range(block.shape[1]):
        block[filled[j] : rows, j] = -np.inf
    return rows


@exact_kernel
def _unpack_best(E: int, count: int, best: Array, values: Array, experts: Array) -> None:
    bits = best.view(np.int64)
    for r in range(best.shape[0]):
        for j in range(count):
            experts[r, j] = expert_of(bits[r, j], E)
            values[r, j] = score_of(best[r, j])


@exact_kernel
def _sort_by_insertion(
    scores: Array, shift: Array, tokens: Array, begin: int, count: int, memory: BlockMemory
) -> None:
    values, experts, found = memory.values, memory.experts, memory.found
    wanted, candidates = len(values), scores.shape[1]
    if len(memory.most):
        _find_floors(scores, shift, tokens, begin, count, memory)
    for j in range(count):
        row = scores[tokens[begin + j]] if tokens.size else scores[begin + j]
        if len(memory.most):
            candidates = list_reaching(row, shift, memory.floors[-1, j], found)
        held = 0
        for k in found[:candidates]:
            value = row[k] + shift[k]
            if held == wanted and not value > values[held - 1, j]:
                continue
            held = min(held + 1, wanted)
            place = held - 1
            # strict, so that equals stay in order of their index
            while place > 0 and values[place - 1, j] < value:
                values[place, j], experts[place, j] = values[place - 1, j], experts[place - 1, j]
                place -= 1
            values[place, j], experts[place, j] = value, k
