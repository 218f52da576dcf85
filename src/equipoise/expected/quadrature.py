"""Integrals over the threshold v, for all experts at once.

By Gauss-Legendre on panels between the densities' corners. Panels are halved until two levels
agree, for the cheap integrands: the selection probabilities, and the sum of all boundary weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from equipoise.expected.counting import BLOCK, boundary_pairs, boundary_total, chosen_if_at
from equipoise.expected.laws import Law
from equipoise.optimum.arrays import Bools, Floats, Ints

NODES, GAUSS = np.polynomial.legendre.leggauss(8)
MOST_PANELS = 4096
"""after so many, refining stops"""


class ShiftedLaw(NamedTuple):
    """What is integrated: a law of scores, the shift added to them, and K."""

    law: Law
    shift: Floats
    top_k: int

    def look_at(self, v: Floats, weights: Floats) -> QuadratureGrid:
        """The law and the cheap probabilities at points v (n)."""
        at = v[:, None] - self.shift
        density, below, above = (
            np.ascontiguousarray(each(at).T)
            for each in (self.law.density, self.law.below, self.law.above)
        )
        chosen = chosen_if_at(below, above, self.top_k)
        return QuadratureGrid(v, weights, density, below, above, chosen)


@dataclass(frozen=True)
class QuadratureGrid:
    """Points v with weights, and at each point, per expert (E, n): the law, and the probability
    that an expert with this shifted score is chosen.
    """

    v: Floats
    weights: Floats
    density: Floats
    below: Floats
    above: Floats
    chosen: Floats

    def take(self, points: Ints) -> QuadratureGrid:
        return QuadratureGrid(*(each[..., points] for each in vars(self).values()))

    def boundary_weight(self, top_k: int) -> Floats:
        """(E, E) w(p): O(E^2 K) for each point, so only on the final grid."""
        return boundary_pairs(self.density, self.below, self.above, self.weights, top_k)


def fine_grid(law: ShiftedLaw) -> QuadratureGrid:
    """A fixed fine grid: relative accuracy for weights far below any absolute tolerance."""
    # from the lowest score on: what is below 1e-18 here may be all there is
    edges = _edges_from(law, float(law.shift.min()))
    return law.look_at(*fine_nodes(edges))


def fine_nodes(edges: Floats) -> tuple[Floats, Floats]:
    """Gauss-Legendre points and weights of panels between edges, each cut in eight."""
    edges = np.unique(np.concatenate([np.linspace(a, b, 9) for a, b in pairwise(edges)]))
    return _gauss_nodes(edges[:-1], edges[1:])


def adapted_grid(law: ShiftedLaw, tolerance: float) -> tuple[QuadratureGrid, float]:
    """Panels halved until the integrals over a panel and over its halves agree; and the sum of what
    they still differ by.
    """
    edges = _first_edges(law)
    low, high = edges[:-1], edges[1:]
    grid = law.look_at(*_gauss_nodes(low, high))
    accepted: list[QuadratureGrid] = []
    spent, left = 0, 0.0
    while low.size:
        middle = (low + high) / 2
        halves = np.stack([low, middle], 1).ravel(), np.stack([middle, high], 1).ravel()
        finer = law.look_at(*_gauss_nodes(*halves))
        parts = _panel_integrals(law, finer, 2 * low.size).reshape(-1, low.size, 2).sum(2)
        error = np.abs(_panel_integrals(law, grid, low.size) - parts).max(0)
        spent += low.size
        done = (error <= tolerance / 10) | (spent > MOST_PANELS)
        accepted.append(grid.take(_panel_nodes(done)))
        left += float(error[done].sum())
        again = np.repeat(~done, 2)
        low, high, grid = halves[0][again], halves[1][again], finer.take(_panel_nodes(again))
    return _joined_grid(accepted), left


def _panel_nodes(panels: Bools) -> Ints:
    return np.flatnonzero(np.repeat(panels, NODES.size))


def _joined_grid(grids: list[QuadratureGrid]) -> QuadratureGrid:
    """One grid of many, padded to whole BLOCKs by repeating the last point with weight 0."""
    columns = {
        name: np.concatenate([getattr(grid, name) for grid in grids], axis=-1)
        for name in vars(grids[0])
    }
    size = columns["v"].size
    kept = np.minimum(np.arange(size + -size % BLOCK), size - 1)
    columns = {name: np.ascontiguousarray(each[..., kept]) for name, each in columns.items()}
    columns["weights"][size:] = 0.0
    return QuadratureGrid(**columns)


def _first_edges(law: ShiftedLaw) -> Floats:
    """Where panels meet at first: the corners (if not too many) from where integrands matter."""
    # scores lie in (0, 1)
    low, high = law.shift.min(), law.shift.max() + 1
    return _edges_from(law, max(low, _first_relevant_point(law, low, high)))


def _edges_from(law: ShiftedLaw, low: float) -> Floats:
    corners, high = (law.law.corners + law.shift[:, None]).ravel(), float(law.shift.max()) + 1
    inner = np.unique(np.round(corners[(corners > low) & (corners < high)], 13))
    if inner.size > MOST_PANELS // 4:
        inner = np.linspace(low, high, 65)[1:-1]
    return np.unique(np.concatenate([[low], inner, np.linspace(low, high, 9)[1:-1], [high]]))


def _first_relevant_point(law: ShiftedLaw, low: float, high: float) -> float:
    """A v below which no expert is chosen with a probability of 1e-18 or more."""
    v = np.linspace(low, high, BLOCK)
    never = law.look_at(v, v).chosen.max(0) < 1e-18
    return float(v[max(int(np.argmin(never)) - 1, 0)])


def _gauss_nodes(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Gauss-Legendre points and weights of panels, padded to whole BLOCKs by points of weight 0."""
    half = (high - low)[:, None] / 2
    v, weights = (low[:, None] + half * (NODES + 1)).ravel(), (half * GAUSS).ravel()
    spare = -v.size % BLOCK
    return np.pad(v, (0, spare), mode="edge"), np.pad(weights, (0, spare))


def _panel_integrals(law: ShiftedLaw, grid: QuadratureGrid, panels: int) -> Floats:
    """(E+1, panels): each panel's part of pi, and of the boundary weights' mean over experts."""
    grid = _joined_grid([grid.take(np.arange(panels * NODES.size))])
    total = boundary_total(grid.density, grid.below, grid.above, law.top_k)
    values = np.vstack([grid.density * grid.chosen, total / len(grid.density)]) * grid.weights
    return values[:, : panels * NODES.size].reshape(-1, panels, NODES.size).sum(2)
