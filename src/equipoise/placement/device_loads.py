"""What a placement makes of recorded loads: the load of every device, and the fullest of them.

With x_be the tokens of expert e in batch b, c_e how many copies it has, and n_de how many of them
are on device d:

    L_bd = sum_e n_de x_be / c_e            load of a device: copies share their expert's tokens
    cost = mean_b max_d L_bd                the fullest device, over batches
    idle = 1 - mean_b mean_d L_bd / cost    share of device time spent waiting for it

That copies share evenly is an assumption: an engine that picks a copy by the token's rank, or at
random, comes close to it where batches are large.
"""

from __future__ import annotations

import numpy as np

from equipoise.storage.arrays import Array


def copies_of_experts(slots: Array, num_experts: int) -> Array:
    """(E,) int64: how often each expert stands in the slots (D, S)."""
    return np.bincount(slots.ravel(), minlength=num_experts)


def loads_of_pieces(loads: Array, copies: Array) -> Array:
    """(B, E) float64: what one copy of each expert gets, from loads (B, E)."""
    return loads.astype(np.float64) / copies


def loads_of_devices(loads: Array, slots: Array) -> Array:
    """(B, D) float64: L, from the loads (B, E) of a layer and its slots (D, S)."""
    pieces = loads_of_pieces(loads, copies_of_experts(slots, loads.shape[1]))
    return pieces[:, slots].sum(2)


def ranked_loads(loads: Array, slots: Array) -> Array:
    """(D,): the load of the fullest device of each batch, of the next, ...; means over batches."""
    return -np.sort(-loads_of_devices(loads, slots), axis=1).mean(0)


def fullest_device(loads: Array, slots: Array) -> float:
    """The cost of a placement: the mean over batches of the fullest device's load."""
    return float(loads_of_devices(loads, slots).max(1).mean())


def even_load(loads: Array, devices: int) -> float:
    """The mean over batches of the mean device's load: no placement costs less."""
    return float(loads.sum(1, dtype=np.float64).mean() / devices)


def linear_slots(num_experts: int, devices: int, redundant: int) -> Array:
    """(D, S): where engines put experts when nobody asks: consecutive ones together, and redundant
    copies of the first ones behind the last.
    """
    return (np.arange(num_experts + redundant) % num_experts).reshape(devices, -1)
