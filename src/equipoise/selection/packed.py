"""The K+1 best experts of many tokens at once: value and index sink through one network together.

A float32 score has 24 bits of mantissa, a float64 has 53. So the shifted score is kept exactly in a
float64, and the expert's index goes into the 29 bits that are left over: the larger of two such
numbers is the larger score, or of equal scores the lower expert. min and max then sort values and
indices together, without a branch, and ties cost nothing.

Tokens are laid out expert by token, so that one instruction works on one expert of many tokens.

What has no place in that order is given one: -0.0 is 0.0, +inf and NaN rank above all numbers
(callers refuse both where they look), -inf below. A choice of -inf is still a valid index.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from equipoise.storage.arrays import Array

INDEX_BITS = 29
"""of a float64's mantissa that a float32 leaves free"""
_INDEX_MASK = (1 << INDEX_BITS) - 1
_ABOVE_ALL = np.float64(2.0**1000)
"""beyond every float32; low bits are free, which those of inf are not"""


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


larger_of = _llvm_instruction("llvm.maxnum")
smaller_of = _llvm_instruction("llvm.minnum")

block_kernel = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz"})
"""for numbers that are not NaN"""
exact_kernel = numba.njit(cache=True, nogil=True, error_model="numpy")
"""for anything a float can be"""


@exact_kernel
def packable(shifted: np.float32) -> float:
    """A shifted score as the float64 whose low bits are free for an index."""
    # adding 0.0 makes -0.0 the 0.0 that it equals
    value = np.float64(shifted) + 0.0
    # NaN fails the comparison, and is then above all
    value = value if value < _ABOVE_ALL else _ABOVE_ALL
    return max(value, -_ABOVE_ALL)


@exact_kernel
def with_index(bits: int, expert: int, num_experts: int) -> int:
    """The bits of a packable score, and with them the expert: of equals the lower is larger."""
    # a greater mantissa is a greater number only above 0
    return bits | ((num_experts - 1 - expert) if bits >= 0 else expert)


@exact_kernel
def pack_tokens(
    scores: Array, shift: Array, tokens: Array, start: int, count: int, block: Array, bits: Array
) -> None:
    """block[k, j] = shifted score and index of expert k at the j-th token; `bits` views `block`."""
    E = scores.shape[1]
    for j in range(count):
        token = tokens[start + j] if tokens.size else start + j
        for k in range(E):
            block[k, j] = packable(scores[token, k] + shift[k])
    for k in range(E):
        for j in range(count):
            bits[k, j] = with_index(bits[k, j], k, E)


@exact_kernel
def expert_of(packed_bits: int, num_experts: int) -> int:
    """The index that was packed."""
    code = packed_bits & _INDEX_MASK
    return num_experts - 1 - code if packed_bits >= 0 else code


@exact_kernel
def score_of(packed: float) -> np.float32:
    """The float32 that was packed: rounding drops the index."""
    if packed >= _ABOVE_ALL:
        return np.float32(np.inf)
    if packed <= -_ABOVE_ALL:
        return np.float32(-np.inf)
    return np.float32(packed)


@block_kernel
def sort_best(block: Array, best: Array, sinking: Array) -> None:
    """best[r, j] = the r-th largest of block[:, j]. The block's rows are a multiple of four.

    A value sinks through the column of the best so far: the larger stays, the smaller sinks on.
    """
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
                    sinking[q, j] = smaller_of(held, value)
                    held = larger_of(held, value)
                best[r, j] = held
