"""Local search on the cost itself, the mean over batches of the fullest device.

A descent takes swaps and copy moves (swaps.py, copies.py) until none lowers the cost. Then a few
random swaps are made and the descent begins again; the best placement seen is kept. The same seed
gives the same placement on every machine that rounds alike.
"""

from __future__ import annotations

import numpy as np

from equipoise.placement.cluster import Cluster
from equipoise.placement.copies import change_copy
from equipoise.placement.device_loads import copies_of_experts
from equipoise.placement.state import (
    SearchState,
    may_exchange,
    node_end,
    search_kernel,
    weigh_all,
)
from equipoise.placement.swaps import exchange_slots, swap_while_better
from equipoise.storage.arrays import Array

KICK = 6
"""random swaps before a new descent"""


def search_slots(
    loads: Array, slots: Array, cluster: Cluster, *, descents: int, seed: int
) -> Array:
    """(D, S): the best placement found from `slots`, never one that costs more.

    Args:
        loads: (B, E) of one layer.
        slots: (D, S), where to begin.
        cluster: says which moves are allowed: within a node where groups are kept there, and no
            two copies of an expert on a device where they must be distinct.
        descents: how often to begin again after a kick.
        seed: of the kicks.
    """
    state = SearchState(
        loads=np.ascontiguousarray(loads.T, np.float64),
        slots=np.array(slots, np.int64, order="C"),
        copies=copies_of_experts(slots, cluster.num_experts),
        pieces=np.empty((cluster.num_experts, len(loads))),
        held=np.empty((cluster.devices, len(loads))),
        node_size=cluster.reach,
        distinct=cluster.distinct,
    )
    _search_from(state, descents, seed)
    return state.slots


@search_kernel
def _search_from(state: SearchState, descents: int, seed: int) -> None:
    """Improve the state's slots in place."""
    np.random.seed(seed)
    best = _descend(state)
    slots, copies = state.slots.copy(), state.copies.copy()
    for _ in range(descents):
        _kick(state)
        cost = _descend(state)
        if cost < best:
            best = cost
            slots[:] = state.slots
            copies[:] = state.copies
        else:
            state.slots[:] = slots
            state.copies[:] = copies


@search_kernel
def _descend(state: SearchState) -> float:
    """Take moves until none helps. Returns the sum over batches of the fullest device."""
    before = np.inf
    while True:
        weigh_all(state)
        cost = swap_while_better(state)
        # a copy move that has saved nothing, by rounding, would be made for ever
        if cost >= before or not change_copy(state, cost):
            return cost
        before = cost


@search_kernel
def _kick(state: SearchState) -> None:
    """A few random swaps, within nodes."""
    devices, places = state.slots.shape
    for _ in range(KICK):
        first = np.random.randint(devices)
        start = first // state.node_size * state.node_size
        second = start + np.random.randint(node_end(state, first) - start)
        i, j = np.random.randint(places), np.random.randint(places)
        if first != second and may_exchange(state, first, i, second, j):
            exchange_slots(state.slots, first, i, second, j)
