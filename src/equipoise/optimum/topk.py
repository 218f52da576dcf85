"""Kernels: what every token chooses under a shift. Loads, the boundary, the choice itself.

The rule for ties is one: among equal shifted scores the lowest expert comes first.

How it is fast. Tokens are taken in blocks and laid out expert by token, so that one instruction
works on the same expert of many tokens. A value sinks through a column of the K+1 best so far: the
larger stays, the smaller sinks further. That is min and max only, no branch, four at a time. What
the token chose is then a comparison with its K-th best value. Only tokens whose K-th and (K+1)-th
values are equal are looked at one by one, since there the rule for ties decides.

Sums `scores + shift` are formed in the scores' own type. For float32 that is exact enough for the
search, not for the proof: near-ties are decided in whole numbers (whole_numbers.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from equipoise.optimum.threads import run_in_parts
from equipoise.storage.arrays import Array

_L1_BYTES = 16384
"""of a block of scores: the nearest cache must also hold the column of best values"""


def _llvm_instruction(name: str) -> Any:
    """LLVM's min or max of two numbers, neither NaN. Python's would compile to a branch."""

    @intrinsic
    def call(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = arguments[0].type
            function = builder.module.declare_intrinsic(
                name, [kind], ir.FunctionType(kind, [kind, kind])
            )
            return builder.call(function, arguments, fastmath=("nnan", "nsz"))

        return a(a, a), generate

    return call


_larger = _llvm_instruction("llvm.maxnum")
_smaller = _llvm_instruction("llvm.minnum")

_block_kernel = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz"})


@_block_kernel
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


@_block_kernel
def _best_values(block: Array, best: Array, sinking: Array) -> None:
    """best[r, j] = the r-th largest of block[:, j]. The block's rows are a multiple of four."""
    best[:] = -np.inf
    lanes = block.shape[1]
    for k in range(0, block.shape[0], 4):
        for j in range(lanes):
            sinking[0, j] = block[k, j]
            sinking[1, j] = block[k + 1, j]
            sinking[2, j] = block[k + 2, j]
            sinking[3, j] = block[k + 3, j]
        for r in range(best.shape[0]):
            for j in range(lanes):
                held = best[r, j]
                for q in range(4):
                    value = sinking[q, j]
                    sinking[q, j] = _smaller(held, value)
                    held = _larger(held, value)
                best[r, j] = held


@_block_kernel
def _count_hits(block: Array, threshold: Array, count: int, hits: Array) -> None:
    """hits[k, j] += whether expert k reaches the threshold of the j-th token."""
    for k in range(hits.shape[0]):
        for j in range(count):
            hits[k, j] += block[k, j] >= threshold[j]


@_block_kernel
def _find_value(block: Array, value: Array, first: bool, place: Array) -> None:
    """place[j] = the expert with exactly this value; the first or the last of several."""
    E = block.shape[0]
    lanes = place.shape[0]
    for step in range(E):
        k = E - 1 - step if first else step
        for j in range(lanes):
            place[j] = k if block[k, j] == value[j] else place[j]


@_block_kernel
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


@_block_kernel
def _boundary_part(
    scores: Array,
    shift: Array,
    tokens: Array,
    start: int,
    stop: int,
    top_k: int,
    lanes: int,
    loads: Array,
    value: Array,
    kth: Array,
    runner_up: Array,
    margin: Array,
) -> None:
    """Loads and value of tokens start..stop; and their boundary, unless `margin` is empty."""
    E = scores.shape[1]
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
        _best_values(block, best, sinking)
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


@_block_kernel
def _choice_part(
    scores: Array,
    shift: Array,
    tokens: Array,
    start: int,
    stop: int,
    top_k: int,
    lanes: int,
    experts: Array,
) -> None:
    E = scores.shape[1]
    block = np.full(((E + 3) // 4 * 4, lanes), -np.inf, scores.dtype)
    best = np.empty((top_k, lanes), scores.dtype)
    sinking = np.empty((4, lanes), scores.dtype)
    for begin in range(start, stop, lanes):
        count = min(lanes, stop - begin)
        _lay_out(scores, shift, tokens, begin, count, block)
        _best_values(block, best, sinking)
        for j in range(count):
            _collect_choice(block, j, best[top_k - 1, j], experts[begin + j])


@_block_kernel
def _collect_choice(block: Array, j: int, threshold: float, chosen: Array) -> None:
    """The experts above the threshold, best first; then those equal to it, by index."""
    E = block.shape[0]
    held = 0
    # insertion sort; strict, so that equals stay in order of their index
    for k in range(E):
        value = block[k, j]
        if value > threshold:
            place = held
            while place > 0 and block[chosen[place - 1], j] < value:
                chosen[place] = chosen[place - 1]
                place -= 1
            chosen[place] = k
            held += 1
    for k in range(E):
        if held == chosen.shape[0]:
            return
        if block[k, j] == threshold:
            chosen[held] = k
            held += 1


class Boundary(NamedTuple):
    """What tokens do under a shift. Arrays over the tokens asked for, in their order."""

    loads: Array
    """(E,) int64"""
    value: float
    """sum of the chosen shifted scores"""
    kth: Array
    """(n,) the chosen expert with the lowest shifted score"""
    runner_up: Array
    """(n,) the best expert not chosen"""
    margin: Array
    """(n,) by how much the former beats the latter; 0 at a tie"""


EVERY_TOKEN = np.empty(0, np.int64)
"""in place of a list of tokens: all of them, in order"""


def boundary_under(
    scores: Array, shift: Array, top_k: int, tokens: Array = EVERY_TOKEN
) -> Boundary:
    """One pass: loads, value, and each token's boundary. Needs K < E."""
    n = len(tokens) or len(scores)
    kth, runner_up = np.empty(n, np.int32), np.empty(n, np.int32)
    margin = np.empty(n, scores.dtype)
    loads, value = _loads_and_value(scores, shift, top_k, tokens, kth, runner_up, margin)
    return Boundary(loads, value, kth, runner_up, margin)


def top_k_loads(scores: Array, shift: Array, top_k: int) -> Array:
    """How many tokens choose each expert: (E,) int64. The cheapest pass there is. Needs K < E."""
    nothing = np.empty(0, np.int32)
    no_margin = np.empty(0, scores.dtype)
    return _loads_and_value(scores, shift, top_k, EVERY_TOKEN, nothing, nothing, no_margin)[0]


def choice_under(scores: Array, shift: Array, top_k: int, tokens: Array = EVERY_TOKEN) -> Array:
    """The experts of each token, best first: (n, K) int64."""
    experts = np.empty((len(tokens) or len(scores), top_k), np.int64)
    shift = shift.astype(scores.dtype)
    lanes = _block_lanes(scores)
    run_in_parts(
        len(experts), lambda a, b: _choice_part(scores, shift, tokens, a, b, top_k, lanes, experts)
    )
    return experts


def _loads_and_value(
    scores: Array,
    shift: Array,
    top_k: int,
    tokens: Array,
    kth: Array,
    runner_up: Array,
    margin: Array,
) -> tuple[Array, float]:
    n, E = len(tokens) or len(scores), scores.shape[1]
    shift = shift.astype(scores.dtype)
    lanes = _block_lanes(scores)
    loads: list[Array] = []
    values: list[Array] = []

    def part(start: int, stop: int) -> None:
        counted, value = np.zeros(E, np.int64), np.zeros(1)
        _boundary_part(
            scores, shift, tokens, start, stop, top_k, lanes, counted, value, kth, runner_up, margin
        )
        loads.append(counted)
        values.append(value)

    run_in_parts(n, part)
    return np.asarray(np.sum(loads, axis=0, dtype=np.int64)), float(np.sum(values))


def _block_lanes(scores: Array) -> int:
    """Tokens in a block: a multiple of 16, so many that the block stays in the nearest cache."""
    return max(16, min(64, _L1_BYTES // (scores.shape[1] * scores.itemsize) // 16 * 16))
