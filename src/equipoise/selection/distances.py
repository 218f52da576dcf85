"""Histograms of how far experts are from being chosen, or left, by each token.

The arithmetic is that of `balancing/mathematics/histogram.py`, operation by operation in float32,
so that both count the same to the last token; there stands what the distances mean.
"""

from __future__ import annotations

import numpy as np

from equipoise.selection.packed import exact_kernel
from equipoise.selection.threads import run_in_parts
from equipoise.storage.arrays import Array

_MIN_PART_SCORES = 1 << 16


@exact_kernel
def _place_row(
    row: Array,
    shift: Array,
    price: np.float32,
    margin: np.float32,
    flips: bool,
    scale: Array,
    middle: np.float32,
    place: Array,
) -> None:
    """place[k] = the bin of expert k's distance for one token. 0 is below; distance 0 begins bin
    `middle`; 2 middle - 1 is above.
    """
    zero, most = np.float32(0), middle + middle - np.float32(1)
    for k in range(row.shape[0]):
        distance = (row[k] + shift[k]) - price
        if flips:
            distance = distance if distance > zero else distance - margin
        where = distance * scale[k] + middle
        where = where if where > zero else zero
        place[k] = np.int32(where if where < most else most)


@exact_kernel
def _count_part(
    scores: Array,
    shift: Array,
    runner_up: Array,
    margin: Array,
    mask: Array,
    flips: bool,
    scale: Array,
    stride: int,
    start: int,
    stop: int,
    counts: Array,
) -> None:
    E = scores.shape[1]
    middle = np.float32(counts.shape[1] // 2)
    place = np.empty(E, np.int32)
    for sample in range(start, stop):
        i = sample * stride
        # a token without a runner-up has no threshold
        if (mask.size > 0 and mask[i]) or not margin[i] < np.inf:
            continue
        price = scores[i, runner_up[i]] + shift[runner_up[i]]
        _place_row(scores[i], shift, price, margin[i], flips, scale, middle, place)
        for k in range(E):
            counts[k, place[k]] += 1


def count_distance_bins(
    scores: Array,
    shift: Array,
    runner_up: Array,
    margin: Array,
    mask: Array,
    scale: Array,
    bins: int,
    *,
    flips: bool,
    stride: int = 1,
    threads: int | None = None,
) -> Array:
    """(E, bins + 2) int64: below, the bins over [-width, width], above.

    Args:
        scores: (T, E) float32; shift: (E,) float32; scale: (E,) float32, bins per distance.
        runner_up: (T,) int64, each token's first expert left out; margin: (T,) float32.
        mask: (T,) bool, True for padding; empty for none.
        flips: measure from the K-th choice where an expert is not chosen (flips.py); else from the
            runner-up throughout (quantile.py).
        stride: count every n-th token.
    """
    samples, E = -(-len(scores) // stride), scores.shape[1]
    found: list[Array] = []

    def part(start: int, stop: int) -> None:
        counts = np.zeros((E, bins + 2), np.int32)
        _count_part(
            scores, shift, runner_up, margin, mask, flips, scale, stride, start, stop, counts
        )
        found.append(counts)

    run_in_parts(samples, part, least=max(1, _MIN_PART_SCORES // E), threads=threads)
    return np.asarray(np.sum(found, axis=0, dtype=np.int64))
