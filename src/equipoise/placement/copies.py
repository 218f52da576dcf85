"""Copy moves: a slot that holds one of several copies of an expert takes a copy of another expert.

The move changes how many copies two experts have, and with it the load of every device that holds
one of them.
"""

from __future__ import annotations

import numpy as np

from equipoise.placement.state import (
    LEAST_GAIN,
    SearchState,
    holds_expert,
    node_end,
    search_kernel,
)
from equipoise.storage.arrays import Array

CANDIDATES = 8
"""how many of the experts with the heaviest copies a slot may be given"""


@search_kernel
def change_copy(state: SearchState, cost: float) -> bool:
    """Make the copy move that saves most of `cost`, the sum of fullest devices; False where none
    saves anything. Pieces and held must be weighed again.
    """
    if state.copies.max() == 1:
        return False
    heavy = np.argsort(-state.pieces.sum(1))[:CANDIDATES]
    order = _falling_devices(state.held)
    best, best_device, best_place, best_expert = cost * (1 - LEAST_GAIN), -1, -1, -1
    for device in range(state.slots.shape[0]):
        for place in range(state.slots.shape[1]):
            if not _may_leave(state, device, place):
                continue
            for expert in heavy:
                if not _may_come(state, device, place, expert):
                    continue
                after = _fullest_with_copy(state, order, device, place, expert)
                if after < best:
                    best, best_device, best_place, best_expert = after, device, place, expert
    if best_device < 0:
        return False
    state.copies[state.slots[best_device, best_place]] -= 1
    state.copies[best_expert] += 1
    state.slots[best_device, best_place] = best_expert
    return True


@search_kernel
def _may_leave(state: SearchState, device: int, place: int) -> bool:
    """Whether the slot holds one of several copies, and no earlier slot of the device another of
    them: that move would be the same.
    """
    places = state.slots[device]
    return state.copies[places[place]] > 1 and not holds_expert(places[:place], places[place])


@search_kernel
def _may_come(state: SearchState, device: int, place: int, expert: int) -> bool:
    places = state.slots[device]
    if expert == places[place] or (state.distinct and holds_expert(places, expert)):
        return False
    # copies of an expert stay in the node where the others are
    end = node_end(state, device)
    start = device // state.node_size * state.node_size
    return holds_expert(state.slots[start:end].ravel(), expert)


@search_kernel
def _falling_devices(held: Array) -> Array:
    """(B, D): the devices of each batch, the fullest first."""
    order = np.empty((held.shape[1], held.shape[0]), np.int64)
    for b in range(len(order)):
        order[b] = np.argsort(-held[:, b])
    return order


@search_kernel
def _fullest_with_copy(state: SearchState, order: Array, where: int, place: int, new: int) -> float:
    """The sum of fullest devices if a slot held `new`. Only devices that hold the old or the new
    expert change; of the others the fullest counts, which is the first of `order` among them.
    """
    old = state.slots[where, place]
    fullest, changed = np.zeros(len(order)), np.zeros(len(state.held), np.bool_)
    for device in range(len(state.held)):
        here = int(device == where)
        olds, news = _count(state.slots[device], old), _count(state.slots[device], new)
        changed[device] = olds + news > 0
        if changed[device]:
            of_old = (olds - here) / (state.copies[old] - 1) - olds / state.copies[old]
            of_new = (news + here) / (state.copies[new] + 1) - news / state.copies[new]
            for b in range(len(order)):
                change = of_old * state.loads[old, b] + of_new * state.loads[new, b]
                fullest[b] = max(fullest[b], state.held[device, b] + change)
    total = 0.0
    for b in range(len(order)):
        first = 0
        while first < len(changed) and changed[order[b, first]]:
            first += 1
        other = state.held[order[b, first], b] if first < len(changed) else 0.0
        total += max(fullest[b], other)
    return total


@search_kernel
def _count(places: Array, expert: int) -> int:
    found = 0
    for each in places:
        found += each == expert
    return found
