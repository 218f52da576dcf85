"""Loads and boundaries without sorting indices, for few experts and for float64.

Only values sink through the network of packed.py, in the scores' own type: of float32 twice as many
an instruction as of packed numbers. What a token chose is then a comparison with its K-th value.
Only tokens whose K-th and (K+1)-th values are equal are looked at one by one, since there the rule
for ties decides. With many experts the comparisons take longer than sorting few (candidates.py).
"""

from __future__ import annotations

import numpy as np

from equipoise.selection.packed import block_kernel, sort_best
from equipoise.storage.arrays import Array

_L1_BYTES = 16384
"""of a block of scores: the nearest cache must also hold the column of best values"""


@block_kernel
def _lay_out(
    scores: Array, shift: Array, tokens: Array, start: int, count: int, block: Array
) -> None:
    """block[k, j] = shifted score of expert k at the j-th token; -inf where there is none."""
    E = scores.shape[1]
    for j in range(count):
        row = scores[tokens[start + j]] if tokens.size else scores[start + j]
        for k in range(E):
            block[k, j] = row[k] + shift[k]
    block[:, count:] = -np.inf


@block_kernel
def _count_hits(block: Array, threshold: Array, count: int, hits: Array) -> None:
    """hits[k, j] += whether expert k reaches the threshold of the j-th token."""
    for k in range(hits.shape[0]):
        for j in range(count):
            hits[k, j] += block[k, j] >= threshold[j]


@block_kernel
def _find_value(block: Array, value: Array, first: bool, place: Array) -> None:
    """place[j] = the expert with exactly this value; the first or the last of several."""
    E = block.shape[0]
    lanes = place.shape[0]
    for step in range(E):
        k = E - 1 - step if first else step
        for j in range(lanes):
            place[j] = k if block[k, j] == value[j] else place[j]


@block_kernel
def _break_tie(block: Array, j: int, top_k: int, value: float, hits: Array) -> tuple[int, int]:
    """Where K-th and (K+1)-th are equal, the lowest experts are chosen. Returns the last chosen and
    the first left out.
    """
    E = hits.shape[0]
    room = top_k
    for k in range(E):
        room -= block[k, j] > value
    last = -1
    first_out = -1
    for k in range(E):
        if block[k, j] == value:
            if room > 0:
                last = k
                room -= 1
            else:
                hits[k, j] -= 1
                first_out = k if first_out < 0 else first_out
    return last, first_out


@block_kernel
def find_thresholds(
    scores: Array,
    shift: Array,
    tokens: Array,
    start: int,
    stop: int,
    top_k: int,
    loads: Array,
    value: Array,
    kth: Array,
    runner_up: Array,
    margin: Array,
) -> None:
    """Loads and value of tokens start..stop; and their boundary, unless `margin` is empty."""
    E = scores.shape[1]
    lanes = max(16, min(64, _L1_BYTES // (E * scores.itemsize) // 16 * 16))
    block = np.full(((E + 3) // 4 * 4, lanes), -np.inf, scores.dtype)
    best = np.empty((min(top_k + 1, E), lanes), scores.dtype)
    sinking = np.empty((4, lanes), scores.dtype)
    hits = np.zeros((E, lanes), np.int32)
    last = np.zeros(lanes, np.int32)
    first_out = np.zeros(lanes, np.int32)
    total = 0.0
    for begin in range(start, stop, lanes):
        count = min(lanes, stop - begin)
        _lay_out(scores, shift, tokens, begin, count, block)
        sort_best(block, best, sinking)
        _count_hits(block, best[top_k - 1], count, hits)
        for r in range(top_k):
            for j in range(count):
                total += best[r, j]
        if margin.size:
            _find_value(block, best[top_k - 1], False, last)
            _find_value(block, best[top_k], True, first_out)
        for j in range(count):
            if best[top_k - 1, j] == best[top_k, j]:
                last[j], first_out[j] = _break_tie(block, j, top_k, best[top_k, j], hits)
        if margin.size:
            for j in range(count):
                kth[begin + j] = last[j]
                runner_up[begin + j] = first_out[j]
                margin[begin + j] = best[top_k - 1, j] - best[top_k, j]
    for k in range(E):
        loads[k] = hits[k].sum()
    value[0] = total
