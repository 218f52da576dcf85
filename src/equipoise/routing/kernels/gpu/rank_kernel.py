"""Triton: the best experts of every token under a shift, in order, and the loads.

A program is one warp (more from 2,048 experts on) and takes some tokens one after the other, each
in registers. Floats become integers of the same order, so that the best of a token is one integer
maximum over the warp (one `redux` instruction since sm_80) and the lowest of equal experts one
minimum. What was chosen is struck out, as often as experts are wanted. Loads are integer atomics:
exact in any order.

NaN ranks first, as +inf would; -0.0 is 0.0. Columns beyond E rank below -inf.
"""

# no postponed annotations: Triton reads tl.constexpr from them
import triton
import triton.language as tl

_LOWEST = tl.constexpr(-(2**31))
_HIGHEST = tl.constexpr(2**31 - 1)


@triton.jit
def ordered_bits(values):
    """float32 -> int32 of the same order."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(values == values, ordered, _HIGHEST)


@triton.jit
def float_of_bits(ordered):
    """The float32 that was made an integer. The one NaN there is ranks as +inf and becomes it."""
    value = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.where(value == value, value, float("inf"))


@triton.jit
def rank_kernel(
    scores_ptr,
    shift_ptr,
    mask_ptr,
    values_ptr,
    experts_ptr,
    loads_ptr,
    num_tokens,
    E: tl.constexpr,
    COLUMNS: tl.constexpr,
    TOP_K: tl.constexpr,
    WANTED: tl.constexpr,
    TOKENS: tl.constexpr,
    SHIFTED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """`rank_experts` of operators.py. COLUMNS is E or the next power of two; a program takes TOKENS
    tokens. All pointers are of contiguous tensors; mask is uint8, loads are int64 and 0.
    """
    expert = tl.arange(0, COLUMNS)
    real = expert < E
    first = tl.program_id(0).to(tl.int64) * TOKENS
    for token in range(first, min(first + TOKENS, num_tokens)):
        values = tl.load(scores_ptr + token * E + expert, mask=real, other=0.0).to(tl.float32)
        if SHIFTED:
            values += tl.load(shift_ptr + expert, mask=real, other=0.0)
        left = tl.where(real, ordered_bits(values), _LOWEST)
        counted = 1
        if MASKED:
            counted = 1 - tl.load(mask_ptr + token).to(tl.int32)
        for rank in tl.static_range(WANTED):
            best = tl.max(left, axis=0)
            chosen = tl.min(tl.where(left == best, expert, COLUMNS), axis=0)
            left = tl.where(expert == chosen, _LOWEST, left)
            tl.store(values_ptr + token * WANTED + rank, float_of_bits(best))
            tl.store(experts_ptr + token * WANTED + rank, chosen.to(tl.int64))
            if rank < TOP_K:
                tl.atomic_add(loads_ptr + chosen, counted.to(tl.int64), sem="relaxed")
