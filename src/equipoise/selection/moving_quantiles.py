"""Each expert's fading quantile along a sequence, one token after another.

The arithmetic is that of `routing/kernels/moving_quantiles.py`, where it is explained. All masses
are whole numbers below 2^53, so their sums are exact in any order. Hence only what a token changes
need be looked at: the mass below the quantile's bin is kept, and moved with it.
"""

from __future__ import annotations

import numpy as np

from equipoise.selection.packed import exact_kernel
from equipoise.selection.threads import run_in_parts
from equipoise.storage.arrays import Array

_MIN_PART_EXPERTS = 16
"""a cache line of float32 scores"""


@exact_kernel
def _fade(masses: Array, fade: float) -> float:
    """Multiply the masses of one expert, down to whole numbers; their sum."""
    total = 0.0
    for b in range(masses.shape[0]):
        masses[b] = np.floor(masses[b] * fade)
        total += masses[b]
    return total


@exact_kernel
def _quantile_bin(masses: Array, wanted: float, found: int, below: float) -> tuple[int, float]:
    """The first bin that reaches the `wanted` mass, and the mass below it; from an earlier one."""
    while found > 0 and below >= wanted:
        found -= 1
        below -= masses[found]
    while below + masses[found] < wanted:
        below += masses[found]
        found += 1
    return found, below


@exact_kernel
def _bin_of(score: np.float32, per_score: np.float32, bins: int) -> int:
    where = score * per_score
    # NaN is in the lowest bin; who routes by it is told
    where = where if where > np.float32(0) else np.float32(0)
    return int(where) if where < np.float32(bins - 1) else bins - 1


@exact_kernel
def _follow_experts(
    scores: Array,
    tokens: Array,
    starts: Array,
    lengths: Array,
    places: Array,
    weights: Array,
    fade: float,
    levels: Array,
    width: float,
    per_score: np.float32,
    kept: Array,
    bins: int,
    quantiles: Array,
    first: int,
    last: int,
) -> None:
    """Experts `first` to `last` along all sequences."""
    E = last - first
    scratch = np.zeros((E, bins))
    found, below, total = np.zeros(E, np.int64), np.zeros(E), np.zeros(E)
    for sequence in range(starts.shape[0]):
        if kept.size:
            scratch[:] = kept[sequence, first:last]
        else:
            scratch[:] = 0.0
        found[:] = 0
        below[:] = 0.0
        for e in range(E):
            total[e] = scratch[e].sum()
        place = places[sequence]
        for j in range(lengths[sequence]):
            token = tokens[starts[sequence] + j]
            if place == weights.shape[0]:
                place = 0
                for e in range(E):
                    total[e] = _fade(scratch[e], fade)
                    below[e] = scratch[e, : found[e]].sum()
            weight = weights[place]
            place += 1
            for e in range(E):
                b = _bin_of(scores[token, first + e], per_score, bins)
                scratch[e, b] += weight
                total[e] += weight
                if b < found[e]:
                    below[e] += weight
                wanted = levels[first + e] * total[e]
                at, under = _quantile_bin(scratch[e], wanted, found[e], below[e])
                found[e], below[e] = at, under
                mass = scratch[e, at]
                inside = (wanted - under) / mass if mass > 0 else 0.0
                quantiles[token, first + e] = np.float32((at + inside) * width)
        if kept.size:
            kept[sequence, first:last] = scratch


def follow_quantiles(
    scores: Array,
    tokens: Array,
    starts: Array,
    lengths: Array,
    places: Array,
    weights: Array,
    fade: float,
    levels: Array,
    reach: float,
    bins: int,
    kept: Array,
    *,
    threads: int | None = None,
) -> Array:
    """(T, E) float32: each expert's quantile after each token; 0 for tokens that are in no
    sequence.

    Args:
        scores: (T, E) float32.
        tokens: (T,) int64, the tokens of the first sequence, of the second, ...
        starts, lengths: (S,) int64, where a sequence begins in `tokens`, and how many are its own.
        places: (S,) int64, how many tokens stand in the window of each sequence already.
        weights: (R,) float64 whole numbers, what each token of a window weighs.
        fade: what masses are multiplied by at the end of a window.
        levels: (E,) float64, which quantile.
        reach: bins lie on [0, reach].
        bins: how many.
        kept: (S, E, bins) float64, the masses before the first token; changed to those after the
            last. (0, E, bins): all begin at 0, and are not kept.
    """
    E = scores.shape[1]
    quantiles = np.zeros(scores.shape, np.float32)

    def part(first: int, last: int) -> None:
        _follow_experts(
            scores, tokens, starts, lengths, places, weights, fade, levels, reach / bins,
            np.float32(bins / reach), kept, bins, quantiles, first, last,
        )  # fmt: skip

    run_in_parts(E, part, least=_MIN_PART_EXPERTS, threads=threads)
    return quantiles
