"""Kernels: what every token chooses under a shift. Loads, the boundary, the choice itself.

The rule for ties is one: among equal shifted scores the lowest expert comes first.

How they are fast stands in selection/: thresholds.py for few experts, candidates.py for many.

Sums `scores + shift` are formed in the scores' own type. For float32 that is exact enough for the
search, not for the proof: near-ties are decided in whole numbers (whole_numbers.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.selection.best import (
    EVERY_TOKEN,
    BlockPlan,
    best_experts,
    block_memory,
    plan_blocks,
)
from equipoise.selection.packed import exact_kernel
from equipoise.selection.threads import run_in_parts
from equipoise.selection.thresholds import find_thresholds
from equipoise.storage.arrays import Array

MANY_EXPERTS = 160
"""from there on it is faster to sort the few that can be chosen than to compare all"""


@exact_kernel
def _sort_part(
    scores: Array,
    shift: Array,
    tokens: Array,
    start: int,
    stop: int,
    top_k: int,
    plan: BlockPlan,
    loads: Array,
    value: Array,
    kth: Array,
    runner_up: Array,
    margin: Array,
) -> None:
    """Loads and value of tokens start..stop; and their boundary, unless `margin` is empty."""
    memory = block_memory(scores, plan)
    values, experts = memory.values, memory.experts
    total = 0.0
    for begin in range(start, stop, values.shape[1]):
        count = min(values.shape[1], stop - begin)
        best_experts(scores, shift, tokens, begin, count, memory)
        for r in range(top_k):
            for j in range(count):
                loads[experts[r, j]] += 1
                total += values[r, j]
        if margin.size:
            for j in range(count):
                kth[begin + j] = experts[top_k - 1, j]
                runner_up[begin + j] = experts[top_k, j]
                margin[begin + j] = values[top_k - 1, j] - values[top_k, j]
    value[0] = total


@exact_kernel
def _choice_part(
    scores: Array,
    shift: Array,
    tokens: Array,
    start: int,
    stop: int,
    plan: BlockPlan,
    experts: Array,
) -> None:
    memory = block_memory(scores, plan)
    for begin in range(start, stop, plan.lanes):
        count = min(plan.lanes, stop - begin)
        best_experts(scores, shift, tokens, begin, count, memory)
        for j in range(count):
            for r in range(plan.wanted):
                experts[begin + j, r] = memory.experts[r, j]


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
    shift, plan = shift.astype(scores.dtype), plan_blocks(scores, top_k)

    def part(start: int, stop: int) -> None:
        _choice_part(scores, shift, tokens, start, stop, plan, experts)

    run_in_parts(len(experts), part)
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
    plan = plan_blocks(scores, top_k + 1 if margin.size else top_k)
    sorts = E >= MANY_EXPERTS and plan.groups > 0
    loads: list[Array] = []
    values: list[Array] = []

    def part(start: int, stop: int) -> None:
        counted, value = np.zeros(E, np.int64), np.zeros(1)
        asked = (scores, shift, tokens, start, stop, top_k)
        answer = (counted, value, kth, runner_up, margin)
        if sorts:
            _sort_part(*asked, plan, *answer)
        else:
            find_thresholds(*asked, *answer)
        loads.append(counted)
        values.append(value)

    run_in_parts(n, part)
    return np.asarray(np.sum(loads, axis=0, dtype=np.int64)), float(np.sum(values))
