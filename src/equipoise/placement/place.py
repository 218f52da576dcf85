"""place: which experts, and which copies of them, on which device, from recorded loads.

    found = place("runs/a", devices=8, redundant=8)
    found.save("placed")

Every layer is a problem of its own. EPLB's placement and one packed with an eye on every batch are
improved by local search on the cost itself; a small layer is then given to an integer program. The
cheapest of all these on the recorded batches is taken, so it is never worse than EPLB's there.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

import numpy as np

from equipoise.placement.bound import least_fullest
from equipoise.placement.cluster import Cluster
from equipoise.placement.device_loads import (
    even_load,
    fullest_device,
    linear_slots,
    ranked_loads,
)
from equipoise.placement.exact import PROVED, is_small, solve_exactly
from equipoise.placement.recorded_loads import RecordedLoads
from equipoise.placement.result import LayerPlacement, Placement
from equipoise.placement.search import search_slots
from equipoise.placement.starts import rival_slots, spread_slots, starting_slots
from equipoise.selection.threads import run_in_parts
from equipoise.storage.arrays import Array

SEARCH_SIZE, MOST_BATCHES_SEARCHED = 32_768, 256
"""slots times batches that the search looks at, spread over all; what it finds is judged on all"""
KICKED_WORK = 100_000
"""slots times (batches + devices) times kicks, about: small layers are searched longer"""
FEWEST_KICKS, MOST_KICKS = 2, 64


def place(
    trace: str | os.PathLike[str] | Array | RecordedLoads,
    *,
    devices: int,
    nodes: int = 1,
    redundant: int = 0,
    groups: int | None = None,
    distinct: bool = False,
    exact_seconds: float = 5.0,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Placement:
    """Place the experts of every layer so that the fullest device, over batches, has least to do.

    Copies of an expert are taken to share its tokens evenly. The first half of the batches is also
    placed alone and judged on the second: what a placement is worth on batches it has not seen.

    Args:
        trace: a trace, a run, or a file of loads (`equipoise.placement.RecordedLoads` says which
            ones), or an array of loads (batches, layers, experts).
        devices: over which the experts of each layer are spread, with equally many slots on each.
        nodes: that the devices stand in. Where they divide `groups`, a group's experts stay within
            one node, as in EPLB's hierarchical policy; otherwise they change nothing.
        redundant: copies beyond the first of each expert, in each layer.
        groups: equal blocks of consecutive experts of which a token may use some; by default those
            of the trace.
        distinct: no device may hold two copies of one expert, as vllm-ascend demands.
        exact_seconds: that the integer program may take for each small layer; 0: it is not used.
        seed: of the search.
        progress: called with a line of text now and then.

    Example:
        >>> loads = np.array([[[9, 1, 9, 1]], [[1, 9, 1, 9]]])
        >>> found = place(loads, devices=2)
        >>> found.layers[0].cost, found.layers[0].rival_cost
        (10.0, 18.0)
    """
    start, say = time.perf_counter(), progress or (lambda line: None)
    if not exact_seconds >= 0:
        raise ValueError(f"exact_seconds is a time, 0 or more, not {exact_seconds:g}")
    recorded = RecordedLoads.of(trace)
    groups = recorded.groups if groups is None else groups
    sizes = recorded.loads.shape[2], devices, redundant, nodes, groups, distinct
    search = _LayerSearch(Cluster.checked(*sizes), exact_seconds, seed)
    say(f"placing {len(recorded.layers)} layers on {len(recorded.loads)} batches")
    layers = search.place_layers(recorded.loads, recorded.layers)
    held_out: list[LayerPlacement] = []
    if recorded.halves is not None:
        first, second = recorded.halves
        say("placing the first half, to judge it on the second")
        fitted = search.place_layers(first, recorded.layers)
        held_out = [search.judge_layer(second[:, n], layer) for n, layer in enumerate(fitted)]
    return Placement(
        cluster=search.cluster,
        layers=tuple(layers),
        held_out=tuple(held_out),
        batches=len(recorded.loads),
        seconds=time.perf_counter() - start,
    )


class _LayerSearch:
    """Places and judges single layers; the same for all of them."""

    def __init__(self, cluster: Cluster, exact_seconds: float, seed: int) -> None:
        self.cluster, self.exact_seconds, self.seed = cluster, exact_seconds, seed
        self.linear = linear_slots(cluster.num_experts, cluster.devices, cluster.redundant)

    def place_layers(self, loads: Array, names: tuple[str, ...]) -> list[LayerPlacement]:
        """All layers, on all cores; loads (B, L, E)."""
        placed: dict[int, LayerPlacement] = {}

        def place_some(start: int, stop: int) -> None:
            for n in range(start, stop):
                placed[n] = self._place_layer(loads[:, n], names[n])

        run_in_parts(len(names), place_some, least=1)
        return [placed[n] for n in range(len(names))]

    def judge_layer(self, loads: Array, layer: LayerPlacement) -> LayerPlacement:
        """The same placement on other loads (B, E); nothing is proved there."""
        return self._judged(loads, layer.layer, layer.slots, layer.rival_slots)

    def _place_layer(self, loads: Array, name: str) -> LayerPlacement:
        rival = rival_slots(loads, self.cluster)
        found = self._search_all(self._searched_batches(loads), rival)
        allowed = [self.linear] if self.cluster.allows(self.linear) else []
        best = min([rival, *allowed, *found], key=lambda slots: fullest_device(loads, slots))
        bound = least_fullest(loads, self.cluster)
        known = fullest_device(loads, best) <= bound * (1 + PROVED)
        if not known and self.exact_seconds > 0 and is_small(len(loads), self.cluster):
            best, bound = solve_exactly(loads, best, self.cluster, self.exact_seconds)
        return self._judged(loads, name, best, rival, bound)

    def _searched_batches(self, loads: Array) -> Array:
        """At most as many batches as the search looks at, evenly over all."""
        most = min(MOST_BATCHES_SEARCHED, max(1, SEARCH_SIZE // self.cluster.slots), len(loads))
        return loads[np.unique(np.linspace(0, len(loads) - 1, most).round().astype(int))]

    def _search_all(self, loads: Array, rival: Array) -> list[Array]:
        """What each start leads to, and what kicks make of the best of them."""
        starts = [(self.cluster, slots) for slots in starting_slots(loads, rival, self.cluster)]
        if self._apart != self.cluster:
            # with fewer ways to go the descent is misled less often
            single = rival_slots(loads, self._apart)
            starts.append((self._apart, spread_slots(loads, single, self._apart)))
        found = [self._searched(loads, slots, cluster) for cluster, slots in starts]
        best = min(found, key=lambda slots: fullest_device(loads, slots))
        kicks = KICKED_WORK // (self.cluster.slots * (len(loads) + self.cluster.devices))
        kicks = min(MOST_KICKS, max(FEWEST_KICKS, kicks))
        return [*found, self._searched(loads, best, self.cluster, kicks)]

    def _searched(self, loads: Array, slots: Array, cluster: Cluster, kicks: int = 0) -> Array:
        return search_slots(loads, slots, cluster, descents=kicks, seed=self.seed)

    @property
    def _apart(self) -> Cluster:
        """The same devices without two copies of one expert on any, if that can be."""
        apart = dataclasses.replace(self.cluster, distinct=True)
        return apart if self.cluster.redundant and apart.fits else self.cluster

    def _judged(
        self, loads: Array, name: str, slots: Array, rival: Array, bound: float = 0.0
    ) -> LayerPlacement:
        ways = {"linear": self.linear, "eplb": rival, "placed": slots}
        ranked = {way: ranked_loads(loads, each) for way, each in ways.items()}
        cost = float(ranked["placed"][0])
        bound = min(cost, max(bound, least_fullest(loads, self.cluster)))
        return LayerPlacement(
            layer=name,
            slots=slots,
            rival_slots=rival,
            ranked=ranked,
            even=even_load(loads, self.cluster.devices),
            bound=bound,
            proved=cost <= bound * (1 + PROVED),
        )
