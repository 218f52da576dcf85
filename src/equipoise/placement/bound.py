"""A proved lower bound on the cost of any placement, for judging one that a heuristic found.

Let x_1 >= ... >= x_E be the loads of a batch, D the devices, S the slots of each, R the redundant
copies. Whatever the placement, the fullest device of that batch has at least

  mean     sum x / D, since the fullest is not below the mean.
  pieces   the least t for which the experts can be cut into D S equal parts each, c_e of expert e,
           with no part above t: sum_e max(1, ceil(x_e / t)) <= D S. Proof: the placement has some
           copies c_e >= 1 that sum to D S, and a copy of load x_e / c_e stands whole on a device.
  shelves  for k = 0 .. S-1 with n = D k + 1 + R <= E: x_(n-k) + ... + x_n, and with R = 0 also the
           S - k - 1 least loads of all. Proof: R copies split at most R experts, so of the n
           fullest at least D k + 1 have a single copy. D devices cannot hold them with k each: one
           holds k + 1, which weigh at least the k + 1 least of the n. With R = 0 its other
           S - k - 1 slots hold other experts, which weigh at least the S - k - 1 least of all.

The cost is a mean over batches, so the mean of these per-batch bounds is below it. It is also at
least the fullest device under the mean loads (a mean of maxima is not below the maximum of means:
Jensen), so the same three bounds on the mean loads hold too. With redundant copies there is a
fourth, in shared_copies.py: all batches have the same copies. What is returned is the greatest.

The first two hold also where copies of an expert may share a device, or where groups are kept
within nodes: constraints only raise the cost.
"""

from __future__ import annotations

import numpy as np

from equipoise.placement.cluster import Cluster
from equipoise.placement.shared_copies import shared_bound
from equipoise.storage.arrays import Array


def least_fullest(loads: Array, cluster: Cluster) -> float:
    """No placement of a layer costs less than this, in tokens; loads (B, E)."""
    loads = np.asarray(loads, np.float64)
    together = loads.mean(0, keepdims=True)
    by_batch = [float(bound_of_batches(each, cluster).mean()) for each in (loads, together)]
    return max(*by_batch, shared_bound(loads, cluster))


def bound_of_batches(loads: Array, cluster: Cluster) -> Array:
    """(B,): the greatest of the three bounds for each batch."""
    falling = -np.sort(-loads, axis=1)
    even = loads.sum(1, dtype=np.float64) / cluster.devices
    pieces = least_pieces(falling, cluster.slots)
    return np.maximum(np.maximum(even, pieces), _shelves(falling, cluster))


def least_pieces(loads: Array, slots: int) -> Array:
    """(B,): the least possible greatest part, where experts are cut into `slots` parts in all.

    Greedy: always cut the expert with the heaviest part once more. In a better cut every expert
    whose part is heaviest here at any time would need more parts than it has, and no other fewer.
    """
    copies, parts = np.ones_like(loads), loads.copy()
    rows = np.arange(len(loads))
    for _ in range(slots - loads.shape[1]):
        heaviest = parts.argmax(1)
        copies[rows, heaviest] += 1
        parts[rows, heaviest] = loads[rows, heaviest] / copies[rows, heaviest]
    return parts.max(1)


def _shelves(falling: Array, cluster: Cluster) -> Array:
    """(B,): the greatest over k of the third bound."""
    experts = falling.shape[1]
    found = np.zeros(len(falling))
    for k in range(cluster.slots_per_device):
        n = cluster.devices * k + 1 + cluster.redundant
        if n > experts:
            break
        shelf = falling[:, n - k - 1 : n].sum(1)
        if not cluster.redundant:
            rest = cluster.slots_per_device - k - 1
            shelf = shelf + falling[:, experts - rest :].sum(1)
        found = np.maximum(found, shelf)
    return found
