"""What the kernels of the local search work on, and the sums they share.

numba keeps compiled kernels by the text of the caller's file: after a change here, in swaps.py or
in copies.py delete __pycache__/search*.nb*, or the search runs with the old kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import numba

from equipoise.storage.arrays import Array

LEAST_GAIN = 1e-9
"""of the cost, that a move must save: rounding alone saves nothing"""

# sums may be taken in any order, which lets them be taken four at a time
search_kernel = numba.njit(
    cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nnan", "nsz"}
)


class SearchState(NamedTuple):
    """A placement that is being improved in place. E experts, B batches, D devices, S slots."""

    loads: Array
    """(E, B) float64: tokens"""
    slots: Array
    """(D, S) int64: the expert in each slot"""
    copies: Array
    """(E,) int64"""
    pieces: Array
    """(E, B) float64: what one copy gets"""
    held: Array
    """(D, B) float64: what each device has"""
    node_size: int
    """consecutive devices that copies may not leave"""
    distinct: bool
    """whether no device may hold two copies of one expert"""


@search_kernel
def weigh_all(state: SearchState) -> None:
    """Fill in pieces and held."""
    for expert in range(state.loads.shape[0]):
        state.pieces[expert] = state.loads[expert] / state.copies[expert]
    for device in range(state.slots.shape[0]):
        weigh_device(state, device)


@search_kernel
def weigh_device(state: SearchState, device: int) -> None:
    """From its pieces anew, so that rounding does not add up over moves."""
    state.held[device] = 0.0
    for place in range(state.slots.shape[1]):
        state.held[device] += state.pieces[state.slots[device, place]]


@search_kernel
def holds_expert(places: Array, expert: int) -> bool:
    # numba has no any() of a generator
    for each in places:  # noqa: SIM110
        if each == expert:
            return True
    return False


@search_kernel
def may_exchange(state: SearchState, first: int, i: int, second: int, j: int) -> bool:
    """Whether slot i of the first device and slot j of the second may swap, to some effect."""
    e, f = state.slots[first, i], state.slots[second, j]
    if e == f:
        return False
    return not state.distinct or not (
        holds_expert(state.slots[first], f) or holds_expert(state.slots[second], e)
    )


@search_kernel
def node_end(state: SearchState, device: int) -> int:
    """The first device behind this one's node."""
    return min(state.slots.shape[0], (device // state.node_size + 1) * state.node_size)
