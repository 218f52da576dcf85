"""Scores and shifts as whole numbers, and each token's exact top-K in them.

Scores are read as whole multiples of 2^-52 of the largest one, and the shift is such a whole number
too. So ties are ties, 0 is 0, and nothing accumulates.

numba keeps compiled kernels by the file of the caller: after a change of `in_units`, chains.py must
be touched too, or it runs with the old one.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from equipoise.storage.arrays import Array

UNREACHABLE = 1 << 61
"""more than any distance or cost"""
BITS = 52
"""of the largest score, in units; a shift may still grow to 2^9 times as much"""

exact_kernel = numba.njit(cache=True, nogil=True, error_model="numpy")


def units_in_one(largest: float) -> float:
    """A power of two, so that scaling a float is exact, with 2^52 units in the largest score."""
    return 2.0 ** (BITS - math.frexp(largest)[1]) if largest else 1.0


@exact_kernel
def in_units(score: float, scale: float) -> Any:
    """The score as a whole number of units of 1 / scale."""
    return np.int64(np.rint(np.float64(score) * scale))


@exact_kernel
def _kth_largest(values: Array, best: Array) -> int:
    """The least of the K largest; `best` (K,) is memory for them, in falling order."""
    best[:] = -UNREACHABLE
    last = len(best) - 1
    for value in values:
        if value > best[last]:
            place = last
            while place > 0 and best[place - 1] < value:
                best[place] = best[place - 1]
                place -= 1
            best[place] = value
    return best[last]


@exact_kernel
def choose_by_need(
    scores: Array,
    tokens: Array,
    scale: float,
    shift: Array,
    top_k: int,
    need: Array,
    place: Array,
    chosen: Array,
) -> None:
    """The exact top-K of each token, into `chosen` (n, E). Among equals the expert with the
    greatest need is taken, then the lowest index.

    `need` (D,), the tokens an expert still lacks, or the device `place` (E,) that it is on, is
    updated with each token.
    """
    E = scores.shape[1]
    shifted = np.empty(E, np.int64)
    best = np.empty(top_k, np.int64)
    for row in range(len(tokens)):
        for k in range(E):
            shifted[k] = in_units(scores[tokens[row], k], scale) + shift[k]
        threshold = _kth_largest(shifted, best)
        room = top_k
        for k in range(E):
            chosen[row, k] = shifted[k] > threshold
            room -= chosen[row, k]
            need[place[k]] -= chosen[row, k]
        for _ in range(room):
            neediest = -1
            for k in range(E):
                if (
                    shifted[k] == threshold
                    and not chosen[row, k]
                    and (neediest < 0 or need[place[k]] > need[place[neediest]])
                ):
                    neediest = k
            chosen[row, neediest] = True
            need[place[neediest]] -= 1


@exact_kernel
def write_choices(
    scores: Array, tokens: Array, scale: float, shift: Array, chosen: Array, experts: Array
) -> None:
    """Each token's experts into its row of `experts`: by falling shifted score, then index."""
    for row in range(len(tokens)):
        mine = scores[tokens[row]]
        held = experts[tokens[row]]
        count = 0
        for k in range(scores.shape[1]):
            if chosen[row, k]:
                here = in_units(mine[k], scale) + shift[k]
                place = count
                while (
                    place > 0
                    and in_units(mine[held[place - 1]], scale) + shift[held[place - 1]] < here
                ):
                    held[place] = held[place - 1]
                    place -= 1
                held[place] = k
                count += 1
