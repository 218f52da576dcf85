"""DeepSeek's EPLB, the rival: from the description and the code it was published with
(deepseek-ai/EPLB, README.md and eplb.py, March 2025), written anew.

    pack        items in order of falling load, each to the lightest pack that has room
    replicate   again and again one more copy of the expert whose copies are heaviest
    global      replicate over all experts, pack the copies to devices
    hierarchical  pack groups of experts to nodes, replicate within each node, pack within each node

It sees the sum over batches only: two experts that are full in the same batches are to it as good
together as apart. Ties go to the lowest index; the original leaves them to its sort.
"""

from __future__ import annotations

import numpy as np

from equipoise.placement.cluster import Cluster
from equipoise.storage.arrays import Array


def eplb_slots(mean_loads: Array, cluster: Cluster) -> Array:
    """(D, S): EPLB's placement of one layer, from the mean loads (E,) of its experts."""
    weights = np.asarray(mean_loads, np.float64)
    if not cluster.hierarchical:
        return _replicate_and_pack(weights, cluster.slots, cluster)
    experts = _experts_of_nodes(weights, cluster)
    share = cluster.slots // cluster.nodes
    return np.concatenate(
        [node[_replicate_and_pack(weights[node], share, cluster)] for node in experts]
    )


def pack_evenly(weights: Array, packs: int) -> Array:
    """(packs, n / packs): which of the n items each pack holds, in the order they were put in."""
    size = len(weights) // packs
    # as published: one item a pack is not sorted
    if size == 1:
        return np.arange(packs)[:, None]
    held = np.zeros((packs, size), np.int64)
    filled, total = np.zeros(packs, np.int64), np.zeros(packs)
    for item in np.argsort(-weights, kind="stable"):
        pack = int(np.argmin(np.where(filled < size, total, np.inf)))
        held[pack, filled[pack]] = item
        filled[pack] += 1
        total[pack] += weights[item]
    return held


def replicate_heaviest(weights: Array, slots: int, most: int) -> Array:
    """(slots,): which expert each copy is of; the first of each expert stand first, in order. No
    expert gets more than `most`, which the original does not limit.
    """
    copies = np.ones(len(weights), np.int64)
    added = []
    for _ in range(slots - len(weights)):
        expert = int(np.argmax(np.where(copies < most, weights / copies, -1.0)))
        copies[expert] += 1
        added.append(expert)
    return np.concatenate([np.arange(len(weights)), np.array(added, np.int64)])


def _replicate_and_pack(weights: Array, slots: int, cluster: Cluster) -> Array:
    """On the devices that copies may share: those of a node, or all."""
    experts = replicate_heaviest(weights, slots, cluster.most_copies)
    copies = np.bincount(experts, minlength=len(weights))
    return experts[pack_evenly((weights / copies)[experts], cluster.reach)]


def _experts_of_nodes(weights: Array, cluster: Cluster) -> Array:
    """(nodes, E / nodes): whole groups, packed by their loads."""
    grouped = np.arange(cluster.num_experts).reshape(-1, cluster.experts_per_group)
    packed = pack_evenly(weights[grouped].sum(1), cluster.nodes)
    return grouped[packed].reshape(cluster.nodes, -1)
