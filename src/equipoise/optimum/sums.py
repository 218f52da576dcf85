"""Sums over all tokens, on which the proof of an optimum rests: float64, compensated."""

from __future__ import annotations

import math

import numba
import numpy as np

from equipoise.selection.threads import run_in_parts
from equipoise.storage.arrays import Array

# no fastmath: reordering a sum, or assuming that there is no NaN, would spoil the proof
_proof_kernel = numba.njit(cache=True, nogil=True)


@_proof_kernel
def largest_size(scores: Array) -> float:
    """max |score|, or infinity where a score is NaN or infinite."""
    largest = 0.0
    broken = 0
    for i in range(scores.shape[0]):
        for k in range(scores.shape[1]):
            size = abs(scores[i, k])
            broken += not size < np.inf
            largest = size if size > largest else largest
    return np.inf if broken else largest


@_proof_kernel
def _sums_part(
    scores: Array, shift: Array, experts: Array, start: int, stop: int, sums: Array
) -> None:
    """sums[0] = chosen scores, sums[1] = the K largest shifted scores: float64, by compensated
    summation (what an addition lost is added to the next term).
    """
    E, K = scores.shape[1], experts.shape[1]
    shifted = np.empty(E)
    lost = np.zeros(2)
    for i in range(start, stop):
        for k in range(E):
            shifted[k] = np.float64(scores[i, k]) + shift[k]
        value = 0.0
        best = 0.0
        lowest = np.inf
        for j in range(K):
            value += np.float64(scores[i, experts[i, j]])
            best += shifted[experts[i, j]]
            lowest = min(lowest, shifted[experts[i, j]])
        # more experts above the lowest one chosen than were chosen: some expert left out beats it
        above = 0
        for k in range(E):
            above += shifted[k] > lowest
        for j in range(K):
            above -= shifted[experts[i, j]] > lowest
        if above > 0:
            best = np.sort(shifted)[E - K :].sum()
        for which, term in enumerate((value, best)):
            term -= lost[which]
            total = sums[which] + term
            lost[which] = (total - sums[which]) - term
            sums[which] = total


def value_and_best(scores: Array, shift: Array, experts: Array) -> tuple[float, float]:
    """The value of an assignment, and the sum over tokens of the K largest of scores + shift."""
    parts: list[Array] = []

    def part(start: int, stop: int) -> None:
        both = np.zeros(2)
        _sums_part(scores, shift, experts, start, stop, both)
        parts.append(both)

    run_in_parts(len(scores), part)
    return math.fsum(part[0] for part in parts), math.fsum(part[1] for part in parts)
