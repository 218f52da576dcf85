"""Triton: the best experts of every token under a shift, in order, and the loads.

A program is one warp (more from 2,048 experts on) and takes some tokens one after the other, each
in registers. Every lane sorts its own experts once, by a network that needs no other lane; after
that the best of a token is always the head of some lane, found by two reductions over the warp (a
`redux` instruction each since sm_80), and only the lane that held it moves up by one. Loads are
integer atomics: exact in any order.

Sorted are 64-bit integers: above, the float as an integer of the same order, below, a code that
falls as the expert's index rises. The larger one is the larger score, or of equal scores the
lower expert.

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
def _log_one_plus(small):
    """log(1 + x) for x in [0, 1], also where 1 + x loses most of x (Kahan's correction)."""
    whole = 1.0 + small
    return tl.where(whole == 1.0, small, tl.log(whole) * (small / (whole - 1.0)))


@triton.jit
def _score(logits, highest, total, SCORE: tl.constexpr):
    """The functions of score_functions.py. Softmax needs the token's highest logit and total."""
    if SCORE == "softmax":
        return tl.exp(logits - highest) / total
    elif SCORE == "sigmoid":
        return 1.0 / (1.0 + tl.exp(-logits))
    else:
        softplus = tl.maximum(logits, 0.0) + _log_one_plus(tl.exp(-tl.abs(logits)))
        return tl.sqrt(tl.maximum(softplus, 1.1754943508222875e-38))


@triton.jit
def _highest_and_total(columns):
    """The highest of all logits of a token, and the sum of exp(logit - highest)."""
    above = columns[0]
    for place in tl.static_range(1, len(columns)):
        above = tl.maximum(above, columns[place])
    highest = tl.max(above, axis=0)
    weight = tl.exp(columns[0] - highest)
    for place in tl.static_range(1, len(columns)):
        weight += tl.exp(columns[place] - highest)
    return highest, tl.sum(weight, axis=0)


@triton.jit
def _pair(score, code):
    """Two int32 as one int64: registers are renamed, and nothing is computed."""
    return (score.to(tl.int64) << 32) | code.to(tl.int64)


@triton.jit
def _replaced(column, UPPER: tl.constexpr, upper, LOWER: tl.constexpr, lower):
    between = column[UPPER + 1 : LOWER]
    return column[:UPPER] + (upper,) + between + (lower,) + column[LOWER + 1 :]


@triton.jit
def _in_order(scores, codes, UPPER: tl.constexpr, LOWER: tl.constexpr):
    """The larger of two pairs in the upper place, lane by lane.

    Selected are the halves: of whole pairs the compiler would make a maximum and a minimum, and
    compare twice.
    """
    score, other_score, code, other_code = scores[UPPER], scores[LOWER], codes[UPPER], codes[LOWER]
    wrong = _pair(other_score, other_code) > _pair(score, code)
    upper, lower = tl.where(wrong, other_score, score), tl.where(wrong, score, other_score)
    scores = _replaced(scores, UPPER, upper, LOWER, lower)
    upper, lower = tl.where(wrong, other_code, code), tl.where(wrong, code, other_code)
    return scores, _replaced(codes, UPPER, upper, LOWER, lower)


@triton.jit
def _without_head(column, taken, NOTHING: tl.constexpr, LEFT: tl.constexpr):
    """A column after the lanes whose head was taken moved up by one; LEFT are still needed."""
    rest = ()
    for place in tl.static_range(min(LEFT, len(column))):
        if place + 1 < len(column):
            rest = rest + (tl.where(taken, column[place + 1], column[place]),)
        else:
            rest = rest + (tl.where(taken, NOTHING, column[place]),)
    return rest


@triton.jit
def rank_kernel(
    scores_ptr,
    shift_ptr,
    mask_ptr,
    gates_ptr,
    values_ptr,
    experts_ptr,
    loads_ptr,
    num_tokens,
    E: tl.constexpr,
    LANES: tl.constexpr,
    NETWORK: tl.constexpr,
    TOP_K: tl.constexpr,
    WANTED: tl.constexpr,
    SLOTS: tl.constexpr,
    TOKENS: tl.constexpr,
    SCORE: tl.constexpr,
    SHIFTED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """`rank_experts` of operators.py, and with a SCORE `choose_experts` of from_logits.py.

    LANES is 32 a warp; NETWORK sorts the columns of a lane; SLOTS is a power of two, at least
    WANTED; a program takes TOKENS tokens. All pointers are of contiguous tensors; mask is uint8,
    loads are int64 and 0. Without a SCORE the gates are not written.
    """
    lane = tl.arange(0, LANES)
    slot = tl.arange(0, SLOTS)
    first = tl.program_id(0).to(tl.int64) * TOKENS
    for token in range(first, min(first + TOKENS, num_tokens)):
        row = scores_ptr + token * E
        columns = ()
        for place in tl.static_range((E + LANES - 1) // LANES):
            expert = place * LANES + lane
            column = tl.load(row + expert, mask=expert < E, other=-float("inf"))
            columns = columns + (column.to(tl.float32),)
        highest, total = 0.0, 1.0
        if SCORE == "softmax":
            highest, total = _highest_and_total(columns)
        scores, codes = (), ()
        for place in tl.static_range((E + LANES - 1) // LANES):
            expert = place * LANES + lane
            column = columns[place]
            if SCORE != "none":
                column = _score(column, highest, total, SCORE)
            if SHIFTED:
                column += tl.load(shift_ptr + expert, mask=expert < E, other=0.0)
            scores = scores + (tl.where(expert < E, ordered_bits(column), _LOWEST),)
            codes = codes + (expert ^ _HIGHEST,)
        for step in tl.static_range(len(NETWORK) // 2):
            scores, codes = _in_order(scores, codes, NETWORK[2 * step], NETWORK[2 * step + 1])
        best_scores = tl.full((SLOTS,), _LOWEST, tl.int32)
        best_codes = tl.full((SLOTS,), 0, tl.int32)
        for rank in tl.static_range(WANTED):
            score = tl.max(scores[0], axis=0)
            code = tl.max(tl.where(scores[0] == score, codes[0], -1), axis=0)
            best_scores = tl.where(slot == rank, score, best_scores)
            best_codes = tl.where(slot == rank, code, best_codes)
            if rank + 1 < WANTED:
                taken = codes[0] == code
                scores = _without_head(scores, taken, _LOWEST, WANTED - 1 - rank)
                codes = _without_head(codes, taken, -1, WANTED - 1 - rank)
        experts = best_codes ^ _HIGHEST
        out = token * WANTED + slot
        tl.store(values_ptr + out, float_of_bits(best_scores), mask=slot < WANTED)
        tl.store(experts_ptr + out, experts.to(tl.int64), mask=slot < WANTED)
        if SCORE != "none":
            chosen = tl.load(row + experts, mask=slot < TOP_K, other=0.0).to(tl.float32)
            gates = _score(chosen, highest, total, SCORE)
            tl.store(gates_ptr + token * TOP_K + slot, gates, mask=slot < TOP_K)
        counted = TOP_K
        if MASKED:
            counted = TOP_K * (1 - tl.load(mask_ptr + token).to(tl.int32))
        one = tl.full((SLOTS,), 1, tl.int64)
        tl.atomic_add(loads_ptr + experts, one, mask=slot < counted, sem="relaxed")
