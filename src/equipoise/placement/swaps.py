"""Swaps: two slots of two devices exchange their experts.

A swap moves load between two devices, so whatever it does the fuller of them keeps at least half of
what both have. max(rest, (L_d + L_d') / 2) is therefore below what any swap of the pair can reach,
and most pairs are passed over by it.
"""

from __future__ import annotations

import numpy as np

from equipoise.placement.state import (
    LEAST_GAIN,
    SearchState,
    may_exchange,
    node_end,
    search_kernel,
    weigh_device,
)
from equipoise.storage.arrays import Array


@search_kernel
def swap_while_better(state: SearchState) -> float:
    """The best swap of each pair of devices in turn, until a whole round finds none. Returns the
    sum over batches of the fullest device.
    """
    devices, batches = state.held.shape
    top, who = np.empty((3, batches)), np.empty((3, batches), np.int64)
    rest = np.empty(batches)
    _rank_devices(state.held, top, who)
    least, better = LEAST_GAIN * top[0].sum(), True
    while better:
        better = False
        for first in range(devices):
            for second in range(first + 1, node_end(state, first)):
                _rest_without(top, who, first, second, rest)
                if _swap_pair(state, rest, first, second, least):
                    _rank_devices(state.held, top, who)
                    better = True
    return top[0].sum()


@search_kernel
def _swap_pair(state: SearchState, rest: Array, first: int, second: int, least: float) -> bool:
    """Make the best swap of two devices, if it saves more than `least`."""
    one, other = state.held[first], state.held[second]
    best, best_i, best_j = _fullest_now(rest, one, other) - least, -1, -1
    if _fullest_if_halved(rest, one, other) >= best:
        return False
    for i in range(state.slots.shape[1]):
        for j in range(state.slots.shape[1]):
            if not may_exchange(state, first, i, second, j):
                continue
            given = state.pieces[state.slots[first, i]]
            taken = state.pieces[state.slots[second, j]]
            cost = _fullest_after(rest, one, other, given, taken)
            if cost < best:
                best, best_i, best_j = cost, i, j
    if best_i < 0:
        return False
    exchange_slots(state.slots, first, best_i, second, best_j)
    weigh_device(state, first)
    weigh_device(state, second)
    return True


@search_kernel
def exchange_slots(slots: Array, first: int, i: int, second: int, j: int) -> None:
    slots[first, i], slots[second, j] = slots[second, j], slots[first, i]


@search_kernel
def _fullest_now(rest: Array, one: Array, other: Array) -> float:
    total = 0.0
    for b in range(len(rest)):
        total += max(rest[b], max(one[b], other[b]))
    return total


@search_kernel
def _fullest_if_halved(rest: Array, one: Array, other: Array) -> float:
    """What no swap of the two can be better than."""
    total = 0.0
    for b in range(len(rest)):
        total += max(rest[b], 0.5 * (one[b] + other[b]))
    return total


@search_kernel
def _fullest_after(rest: Array, one: Array, other: Array, given: Array, taken: Array) -> float:
    """The sum of fullest devices after the first has given one piece and taken another."""
    total = 0.0
    for b in range(len(rest)):
        moved = taken[b] - given[b]
        total += max(rest[b], max(one[b] + moved, other[b] - moved))
    return total


@search_kernel
def _rank_devices(held: Array, top: Array, who: Array) -> None:
    """The three fullest devices of each batch, and their loads (3, B)."""
    top[:] = -1.0
    who[:] = -1
    for device in range(held.shape[0]):
        for b in range(held.shape[1]):
            place, load = 2, held[device, b]
            if load <= top[2, b]:
                continue
            while place > 0 and top[place - 1, b] < load:
                top[place, b], who[place, b] = top[place - 1, b], who[place - 1, b]
                place -= 1
            top[place, b], who[place, b] = load, device


@search_kernel
def _rest_without(top: Array, who: Array, first: int, second: int, rest: Array) -> None:
    """(B,): the fullest device of each batch but these two; -1 where there is no third."""
    for b in range(len(rest)):
        place = 0
        while place < 2 and (who[place, b] == first or who[place, b] == second):
            place += 1
        rest[b] = top[place, b]
