"""The best placement of a small layer, by an integer program (scipy's HiGHS).

    z_dec   how many copies of expert e device d has, where e has c copies in all; whole, >= 0
    y_ec    whether expert e has c copies; 0 or 1
    M_b     the fullest device of batch b

    min mean_b M_b
    sum_c y_ec = 1            sum_d z_dec = c y_ec            sum_ec z_dec = S
    sum_ec z_dec x_be / c <= M_b for every device and batch

A copy's load x_e / c_e is no linear function of c_e: so c is an index. Devices are alike, so the
expert with most tokens may be asked to have a copy on the first. M_b has the bounds of bound.py
below it, and the mean of M the cost of a placement that is known above it, which leaves little to
search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp

from equipoise.placement.bound import bound_of_batches
from equipoise.placement.cluster import Cluster
from equipoise.placement.device_loads import even_load, fullest_device
from equipoise.storage.arrays import Array

MOST_CHOICES, MOST_BATCHES = 96, 32
"""D E c and B of a layer that is still small: HiGHS then takes seconds"""
PROVED = 1e-6
"""relative distance to HiGHS's bound that counts as none: its tolerances are of that size"""


class ExactPlacement(NamedTuple):
    """What the integer program found for a layer."""

    slots: Array
    """(D, S)"""
    bound: float
    """HiGHS's own lower bound on the cost"""


def is_small(num_batches: int, cluster: Cluster) -> bool:
    """Whether the integer program is tried: few choices, and no groups to keep within nodes."""
    choices = cluster.devices * cluster.num_experts * cluster.most_copies
    return choices <= MOST_CHOICES and num_batches <= MOST_BATCHES and not cluster.hierarchical


def solve_exactly(loads: Array, known: Array, cluster: Cluster, seconds: float) -> ExactPlacement:
    """The best placement of a layer, unless the time runs out: then the better of what was found
    and what was known.

    Args:
        loads: (B, E).
        known: (D, S), a placement whose cost need not be exceeded.
        cluster: not hierarchical.
        seconds: that HiGHS may take.
    """
    scale = even_load(loads, cluster.devices) or 1.0
    program = _Program(loads / scale, cluster)
    # some room above, since HiGHS compares within tolerances
    found = program.solve(fullest_device(loads, known) / scale * (1 + PROVED), seconds)
    bound = _finite_bound(found) * scale
    if found.x is None:
        return ExactPlacement(known, bound)
    slots = program.read_slots(found.x)
    better = fullest_device(loads, slots) < fullest_device(loads, known)
    return ExactPlacement(slots if better else known, bound)


def _finite_bound(found: OptimizeResult) -> float:
    """HiGHS has none where the time ran out early: 0 is below everything."""
    bound = found.mip_dual_bound
    return float(bound) if bound is not None and np.isfinite(bound) else 0.0


class _Program:
    """The program of a layer: columns are z (D, E, C), then y (E, C), then M (B,)."""

    def __init__(self, loads: Array, cluster: Cluster) -> None:
        self.loads, self.cluster = loads, cluster
        self.copies = np.arange(1, cluster.most_copies + 1)
        self.shape = (cluster.devices, cluster.num_experts, len(self.copies))
        self.z = np.arange(np.prod(self.shape)).reshape(self.shape)
        self.y = self.z.size + np.arange(self.z[0].size).reshape(self.shape[1:])
        self.width = self.z.size + self.y.size + len(loads)

    def solve(self, known: float, seconds: float) -> OptimizeResult:
        """HiGHS's answer; no placement that costs more than `known` is looked for."""
        batches = len(self.loads)
        cost = np.zeros(self.width)
        cost[-batches:] = 1 / batches
        whole = np.ones(self.width)
        whole[-batches:] = 0
        return milp(
            cost,
            integrality=whole,
            bounds=self._bounds(),
            constraints=[*self._constraints(), LinearConstraint(cost[None], -np.inf, known)],
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )

    def read_slots(self, x: Array) -> Array:
        """(D, S): the experts of each device, in order."""
        held = np.rint(x[self.z]).astype(int).sum(2)
        experts = np.arange(self.cluster.num_experts)
        return np.stack([np.repeat(experts, each) for each in held])

    def _bounds(self) -> Bounds:
        low, high = np.zeros(self.width), np.ones(self.width)
        if not self.cluster.distinct:
            high[self.z] = np.minimum(self.copies, self.cluster.slots_per_device)
        low[-len(self.loads) :] = bound_of_batches(self.loads, self.cluster) * (1 - PROVED)
        high[-len(self.loads) :] = np.inf
        return Bounds(low, high)

    def _constraints(self) -> list[LinearConstraint]:
        return [
            self._equal([(self.y[e], 1.0) for e in range(self.shape[1])], 1.0),
            self._copies_stand_somewhere(),
            self._equal([(self.z[d].ravel(), 1.0) for d in range(self.shape[0])], self._slots),
            self._fullest(),
            # the first device has the expert with most tokens: all devices are alike
            LinearConstraint(self._row(self.z[0, self.loads.sum(0).argmax()], 1.0), 1.0, np.inf),
        ]

    @property
    def _slots(self) -> float:
        return float(self.cluster.slots_per_device)

    def _copies_stand_somewhere(self) -> LinearConstraint:
        rows = []
        for e in range(self.shape[1]):
            for place, copies in enumerate(self.copies):
                row = self._row(self.z[:, e, place], 1.0)
                row[0, self.y[e, place]] = -copies
                rows.append(row)
        zero = np.zeros(len(rows))
        return LinearConstraint(sparse.vstack(rows).tocsr(), zero, zero)

    def _fullest(self) -> LinearConstraint:
        rows = []
        for b, batch in enumerate(self.loads):
            pieces = (batch[:, None] / self.copies).ravel()
            for device in range(self.shape[0]):
                row = self._row(self.z[device].ravel(), pieces)
                row[0, self.width - len(self.loads) + b] = -1.0
                rows.append(row)
        return LinearConstraint(sparse.vstack(rows).tocsr(), -np.inf, 0.0)

    def _equal(self, rows: list[tuple[Array, float]], value: float) -> LinearConstraint:
        made = sparse.vstack([self._row(columns, weight) for columns, weight in rows]).tocsr()
        return LinearConstraint(made, value, value)

    def _row(self, columns: Array, weights: Array | float) -> sparse.lil_matrix:
        row = sparse.lil_matrix((1, self.width))
        row[0, columns] = weights
        return row
