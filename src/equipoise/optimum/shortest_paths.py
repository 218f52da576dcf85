"""Shortest paths between experts, from any with too many tokens to the nearest with too few.

The graph is dense and of some hundred nodes, so Dijkstra's rows are gone through whole: two loops
without a branch, in vectors, instead of a heap.
"""

from __future__ import annotations

from equipoise.optimum.whole_numbers import UNREACHABLE, exact_kernel
from equipoise.storage.arrays import Array

_FAR = UNREACHABLE // 2
"""more than any chain costs, and less than an arc that does not exist, whatever the shift"""


@exact_kernel
def _relax_arcs(
    base: int, arcs: Array, shift: Array, here: int, distance: Array, before: Array
) -> None:
    """Shorten distances by the arcs of one node. Without a branch, so that it is done in vectors:
    a node already settled is at most as far, and an arc that does not exist is beyond all.
    """
    for v in range(len(shift)):
        length = base + arcs[v] - shift[v]
        nearer = length < distance[v]
        distance[v] = length if nearer else distance[v]
        before[v] = here if nearer else before[v]


@exact_kernel
def _nearest_open(distance: Array, settled: Array) -> int:
    """The first of the nearest nodes not yet settled; -1 if none can be reached."""
    least = _FAR
    for v in range(len(distance)):
        # a settled node is marked by _FAR
        here = distance[v] | settled[v]
        least = here if here < least else least
    if least >= _FAR:
        return -1
    for v in range(len(distance)):
        if distance[v] | settled[v] == least:
            return v
    return -1


@exact_kernel
def nearest_sink(
    cheapest: Array, shift: Array, excess: Array, distance: Array, before: Array, settled: Array
) -> int:
    """Dijkstra from all nodes with too many to the nearest with too few; -1 if there is none."""
    for v in range(len(shift)):
        distance[v] = 0 if excess[v] > 0 else _FAR
        before[v] = -1
        settled[v] = 0
    while True:
        here = _nearest_open(distance, settled)
        if here < 0 or excess[here] < 0:
            return here
        settled[here] = _FAR
        _relax_arcs(distance[here] + shift[here], cheapest[here], shift, here, distance, before)
