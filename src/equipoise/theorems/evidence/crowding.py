"""How many tokens can move at once: u-bar, M(u) and B_k(p), from the coarsest bound to the only
one that is useful at scale (errata 7).

For a pair of experts (k, l) a token's gap is score_k - score_l. Tokens that swap the same pair in
one step have gaps within 2u of each other (statement 7), so the number that can do so is at most
the number of gaps in a window of that length.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numba import njit

from equipoise.optimum.arrays import Bools, Floats, Ints
from equipoise.theorems.evidence.steps import UpdateStep


def least_gap_difference(scores: Floats, enough: float = 0.0) -> float:
    """2 u-bar: the least difference of two tokens' gaps for the same pair of experts.

    It is about 0.2 / (T E)^2, and 0 with two equal tokens. Stops early, with the difference found
    so far, once that is at most `enough`: a caller that asks whether 2u is smaller needs no more.
    """
    least = np.inf
    for gaps in sorted_gaps(scores):
        least = min(least, float(np.diff(gaps).min(initial=np.inf)))
        if least <= enough:
            break
    return least


def most_in_a_window(scores: Floats, length: float) -> int:
    """M: the most tokens whose gap for one pair of experts lies in a closed window of `length`."""
    most = 0
    for gaps in sorted_gaps(scores):
        most = _fuller_window(gaps, length, most)
    return most


def sorted_gaps(scores: Floats) -> Iterator[Floats]:
    """For each pair of experts, the tokens' gaps in order."""
    columns = np.ascontiguousarray(scores.T)
    return (np.sort(one - other) for one, other in combinations(columns, 2))


def near_threshold(step: UpdateStep, reach: float) -> Ints:
    """B_k(p): tokens whose shifted score for k is within `reach` of their K/(K+1) threshold.

    A chosen expert is compared with the best one left out, an expert left out with the worst one
    chosen: that far something must move before the token's choice of k can change.
    """
    return (threshold_distances(step.shifted, step.before, step.top_k) <= reach).sum(0)


def threshold_distances(shifted: Floats, chosen: Bools, top_k: int) -> Floats:
    """(T, E): how far from its token's threshold each expert's shifted score is; inf for K = E."""
    if top_k == shifted.shape[1]:
        return np.full(shifted.shape, np.inf)
    pair = [-top_k - 1, -top_k]
    best_left_out, worst_chosen = np.partition(shifted, pair, axis=1)[:, pair].T
    return np.where(chosen, shifted - best_left_out[:, None], worst_chosen[:, None] - shifted)


@njit(cache=True)
def _fuller_window(ordered: Floats, length: float, most: int) -> int:
    """The most that fit into one window, or `most` if that is more: the window only grows."""
    start = 0
    while start + most < ordered.size:
        if ordered[start + most] - ordered[start] <= length:
            most += 1
        else:
            start += 1
    return most
