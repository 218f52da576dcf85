"""A bound that knows that all batches share one set of copies; for layers with redundant experts.

bound.py lets each batch have the copies that suit it best. But the copies c_e >= 1, which sum to
P = D S, are the same for all, and a batch's fullest device has at least x_be / c_e of each expert:

    cost >= min_c mean_b max(even_b, max_e x_be / c_e)              over real c_e >= 1, sum c_e = P

That is convex in c. For any weights w_be >= 0, w_b0 >= 0 with w_b0 + sum_e w_be = 1 in each batch,
a maximum is not below the weighted mean; with W_e = mean_b w_be x_be, and for any price mu >= 0,

    cost >= mean_b w_b0 even_b + sum_e min_{c >= 1} (W_e / c + mu c) - mu P
         =  mean_b w_b0 even_b + sum_e (2 sqrt(W_e mu) if W_e > mu else W_e + mu) - mu P.

The last line is the bound. It holds for whatever weights and price; good ones are means of the
subgradients that a descent on c meets.
"""

from __future__ import annotations

import numpy as np

from equipoise.placement.cluster import Cluster
from equipoise.storage.arrays import Array

STEPS = 200
"""of the descent on c; more changes the third digit"""


def shared_bound(loads: Array, cluster: Cluster) -> float:
    """No placement of a layer costs less; loads (B, E)."""
    loads = np.asarray(loads, np.float64)
    even = loads.sum(1, dtype=np.float64) / cluster.devices
    # without tokens nothing is proved, and without spare copies c is fixed
    if not cluster.redundant or not even.any():
        return 0.0
    weights = _descend_on_copies(loads, even, cluster.slots)
    return bound_of_weights(loads, even, weights, cluster.slots)


def bound_of_weights(loads: Array, even: Array, weights: Array, slots: int) -> float:
    """The last line above at the best price, for weights (B, E) of which each row sums to at most
    1: what is missing is w_b0.
    """
    heavy = (weights * loads).mean(0)
    fixed = float(((1 - weights.sum(1)) * even).mean())
    low, high = 0.0, float(heavy.max())
    # concave in the price; its slope is sum_e max(1, sqrt(W_e / mu)) - P
    for _ in range(60):
        price = (low + high) / 2
        slope = np.sqrt(np.maximum(1.0, heavy / max(price, 1e-300))).sum() - slots
        low, high = (price, high) if slope > 0 else (low, price)
    least = np.where(heavy > low, 2 * np.sqrt(heavy * low), heavy + low)
    return fixed + float(least.sum()) - low * slots


def _descend_on_copies(loads: Array, even: Array, slots: int) -> Array:
    """(B, E): weighted means of which expert's copy was the fullest piece, over a descent on c."""
    rows = np.arange(len(loads))
    copies = _shared_out(np.sqrt(loads.mean(0)), slots)
    weights, total = np.zeros_like(loads), 0.0
    for step in range(STEPS):
        pieces = loads / copies
        heaviest = pieces.argmax(1)
        full = pieces[rows, heaviest] > even
        slope = np.zeros(loads.shape[1])
        np.add.at(slope, heaviest[full], (pieces[rows, heaviest] / copies[heaviest])[full])
        size = np.linalg.norm(slope)
        if size == 0.0:
            # these copies make no piece larger than the mean device: the bound is the mean
            return np.zeros_like(loads)
        length = 2.0 / np.sqrt(step + 1.0)
        weights[rows[full], heaviest[full]] += length / size
        total += length / size
        copies = _shared_out(copies + length * slope / size, slots)
    return weights / total


def _shared_out(wanted: Array, slots: int) -> Array:
    """The nearest c >= 1 with sum P: all moved by the same, then cut off at 1."""
    low, high = 1.0 - wanted.max(), slots - wanted.min()
    for _ in range(50):
        move = (low + high) / 2
        low, high = (move, high) if np.maximum(1.0, wanted + move).sum() < slots else (low, move)
    return np.maximum(1.0, wanted + high)
