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

_MIN_PART_EXPERTS = 8


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
def _follow_sequence(
    scores: Array,
    tokens: Array,
    place: int,
    weights: Array,
    fade: float,
    level: float,
    width: float,
    per_score: np.float32,
    masses: Array,
    quantiles: Array,
) -> None:
    """One expert along one sequence. A histogram then stays in the nearest cache."""
    found, below, total = 0, 0.0, masses.sum()
    bins = masses.shape[0]
    for token in tokens:
        if place == weights.shape[0]:
            place = 0
            total = _fade(masses, fade)
            below = masses[:found].sum()
        weight = weights[place]
        place += 1
        b = _bin_of(scores[token], per_score, bins)
        masses[b] += weight
        total += weight
        below += weight if b < found else 0.0
        wanted = level * total
        found, below = _quantile_bin(masses, wanted, found, below)
        mass = masses[found]
        inside = (wanted - below) / mass if mass > 0 else 0.0
        quantiles[token] = np.float32((found + inside) * width)


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
    """Experts `first` to `last` along all sequences; scores and quantiles are (E, T)."""
    masses = np.zeros(bins)
    for e in range(first, last):
        for sequence in range(starts.shape[0]):
            start = starts[sequence]
            mine = tokens[start : start + lengths[sequence]]
            if kept.size:
                masses[:] = kept[sequence, e]
            else:
                masses[:] = 0.0
            _follow_sequence(
                scores[e], mine, places[sequence], weights, fade, levels[e], width, per_score,
                masses, quantiles[e],
            )  # fmt: skip
            if kept.size:
                kept[sequence, e] = masses


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
    """(E, T) float32: each expert's quantile after each token; 0 for tokens that are in no
    sequence.

    Args:
        scores: (E, T) float32.
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
    quantiles = np.zeros(scores.shape, np.float32)

    def part(first: int, last: int) -> None:
        _follow_experts(
            scores, tokens, starts, lengths, places, weights, fade, levels, reach / bins,
            np.float32(bins / reach), kept, bins, quantiles, first, last,
        )  # fmt: skip

    run_in_parts(len(scores), part, least=_MIN_PART_EXPERTS, threads=threads)
    return quantiles
