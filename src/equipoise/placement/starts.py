"""Where a search begins: EPLB's placement, and one packed with an eye on every batch."""

from __future__ import annotations

import numpy as np

from equipoise.placement.cluster import Cluster
from equipoise.placement.device_loads import copies_of_experts, loads_of_pieces
from equipoise.placement.eplb import eplb_slots
from equipoise.storage.arrays import Array


def starting_slots(loads: Array, rival: Array, cluster: Cluster) -> list[Array]:
    """(D, S) each: EPLB's placement, and the same copies packed with an eye on all batches; from
    loads (B, E).
    """
    return [rival, spread_slots(loads, rival, cluster)]


def rival_slots(loads: Array, cluster: Cluster) -> Array:
    """(D, S): EPLB's placement; where copies must be distinct, with as few swaps as make it so."""
    return _parted(eplb_slots(loads.mean(0), cluster), cluster)


def spread_slots(loads: Array, slots: Array, cluster: Cluster) -> Array:
    """(D, S): the copies packed anew: those of each node, or all where experts may go anywhere."""
    pieces = loads_of_pieces(loads, copies_of_experts(slots, cluster.num_experts)).T
    spread = [_packed_by_batches(pieces, part) for part in _parts(slots, cluster)]
    return _parted(np.concatenate(spread), cluster)


def _parts(slots: Array, cluster: Cluster) -> list[Array]:
    """The slots of those devices that copies may be exchanged between."""
    return [slots[n : n + cluster.reach] for n in range(0, cluster.devices, cluster.reach)]


def _packed_by_batches(pieces: Array, slots: Array) -> Array:
    """(D, S): the same copies packed anew, heaviest first, each to the device where the sum over
    batches of the fullest device grows least, then where the load is least; pieces (E, B).
    """
    experts = np.sort(slots.ravel())
    order = experts[np.argsort(-pieces[experts].sum(1), kind="stable")]
    made = np.full_like(slots, -1)
    held, filled = np.zeros((len(slots), pieces.shape[1])), np.zeros(len(slots), np.int64)
    fullest = np.zeros(pieces.shape[1])
    for expert in order:
        after = np.maximum(held + pieces[expert], fullest).sum(1)
        after[filled == slots.shape[1]] = np.inf
        device = int(np.lexsort((held.sum(1), after))[0])
        made[device, filled[device]] = expert
        filled[device] += 1
        held[device] += pieces[expert]
        np.maximum(fullest, held[device], out=fullest)
    return made


def _parted(slots: Array, cluster: Cluster) -> Array:
    """The slots, with no two copies of one expert on a device where that is asked for."""
    if not cluster.distinct:
        return slots
    return np.concatenate([_without_doubles(part.copy()) for part in _parts(slots, cluster)])


def _without_doubles(slots: Array) -> Array:
    """Each second copy on a device changes places with the first slot that allows it. Where none
    does, all copies are dealt out like cards, those of an expert one after another: no expert has
    more copies than there are devices, so none comes to one device twice.
    """
    for device in range(len(slots)):
        for place in range(slots.shape[1]):
            double = slots[device, place] in slots[device, :place]
            if double and not _exchange_double(slots, device, place):
                return np.sort(slots.ravel()).reshape(-1, len(slots)).T
    return slots


def _exchange_double(slots: Array, device: int, place: int) -> bool:
    double = slots[device, place]
    for other in np.flatnonzero(~(slots == double).any(1)):
        new = np.flatnonzero(~np.isin(slots[other], slots[device]))
        if len(new):
            slots[device, place], slots[other, new[0]] = slots[other, new[0]], double
            return True
    return False
