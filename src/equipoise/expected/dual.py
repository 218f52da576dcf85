"""The expected dual and its derivatives, exactly: the paper's sec. 5 as numbers (never by its sums
over subsets).

For independent scores with densities phi_k, top-K of scores + p, and N_S the number of experts
outside S above v:

    pi_k(p) = int phi_k(v - p_k) P(N_k <= K - 1) dv                              selection probability (Prop. 12)
    w_kl(p) = int phi_k(v - p_k) phi_l(v - p_l) P(N_kl = K - 1) dv               boundary weight (Prop. 14)
    f(p)    = T sum_k int v phi_k(v - p_k) P(N_k <= K - 1) dv - L sum p          expected dual
    grad f  = T pi - L,   Hess f = T Laplacian(w),   modulus on sum p = 0: T lambda_2(Laplacian)

Integrals over v by Gauss-Legendre on panels between the densities' corners, halved until two levels
agree (for the cheap
integrands: pi, and the sum of all w); probabilities by counting.py. `at(p)` shares the work between
    the quantities.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from equipoise.expected.counting import BLOCK, boundary_pairs, boundary_total, chosen_if_at
from equipoise.expected.laws import Law
from equipoise.optimum.arrays import Bools, Floats, Ints, centred

NODES, GAUSS = np.polynomial.legendre.leggauss(8)
MOST_PANELS = 4096


@dataclass(frozen=True)
class Expected:
    """T tokens of a law, each choosing K of E experts.

    Args:
        law: of the scores.
        top_k: K.
        num_tokens: T; objective, gradient and modulus are per batch.
        tolerance: of the integrals. Histograms have corners everywhere: 1e-5 is enough for them,
            and far cheaper. After 4,096 panels refining stops; `at(p).error` says what was reached.
    """

    law: Law
    top_k: int
    num_tokens: int = 1
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.law.num_experts:
            raise ValueError(
                f"top_k = {self.top_k} of {self.law.num_experts} experts is impossible"
            )

    @property
    def target_load(self) -> float:
        """L = K T / E."""
        return self.top_k * self.num_tokens / self.law.num_experts

    def at(self, shift: ArrayLike) -> AtShift:
        """Everything at one shift; each quantity is computed when asked for."""
        shift = np.asarray(shift, np.float64)
        if shift.shape != (self.law.num_experts,) or not np.isfinite(shift).all():
            raise ValueError(
                f"the shift must be {self.law.num_experts} finite numbers, not of shape "
                f"{shift.shape}"
            )
        return AtShift(self, shift)

    def selection_probability(self, shift: ArrayLike) -> Floats:
        """(E) pi(p)."""
        return self.at(shift).selection_probability

    def selection_gradient(self, shift: ArrayLike) -> Floats:
        """(E, E) d pi_k / d p_l: the Laplacian of the boundary weights."""
        return laplacian(self.at(shift).boundary_weight)

    def boundary_weight(self, shift: ArrayLike) -> Floats:
        """(E, E) w(p), symmetric, 0 on the diagonal."""
        return self.at(shift).boundary_weight

    def dual(self, shift: ArrayLike) -> float:
        """f(p)."""
        return self.at(shift).dual

    def convexity_modulus(self, shift: ArrayLike) -> float:
        """T lambda_2: the curvature of f at p in its flattest direction with sum 0. 0 if K = E
        (errata 4).
        """
        return self.num_tokens * float(
            np.linalg.eigvalsh(laplacian(self.at(shift).boundary_weight))[1]
        )

    def minimiser(self) -> Floats:
        """p* with sum 0, by Newton's method from the shift that puts all experts' (1 -
        K/E)-quantiles level.
        """
        if self.top_k == self.law.num_experts:
            raise ValueError(
                "with K = E every shift gives the same loads: there is no minimiser to speak of"
            )
        share = self.top_k / self.law.num_experts
        point = self.at(centred(-self.law.quantile(1 - share)))
        for _ in range(60):
            slope = point.selection_probability - share
            if np.abs(slope).max() <= max(self.tolerance, 1e-13):
                return point.shift
            point = _downhill(point, _newton_direction(point.boundary_weight, slope), slope)
        raise ValueError(
            f"the minimiser was not found: loads are off by {np.abs(slope).max():.1e} of the "
            "tokens after 60 steps"
        )


@dataclass(frozen=True)
class AtShift:
    """The expected quantities at one shift."""

    expected: Expected
    shift: Floats

    @cached_property
    def selection_probability(self) -> Floats:
        grid = self._grid
        return (grid.density * grid.chosen) @ grid.weights

    @cached_property
    def dual(self) -> float:
        grid = self._grid
        worth = ((grid.density * grid.chosen) @ (grid.weights * grid.v)).sum()
        return float(
            self.expected.num_tokens * worth - self.expected.target_load * self.shift.sum()
        )

    @cached_property
    def boundary_weight(self) -> Floats:
        grid, K = self._grid, self.expected.top_k
        return boundary_pairs(grid.density, grid.below, grid.above, grid.weights, K)

    @property
    def gradient(self) -> Floats:
        """T pi - L, the mean of A - L (eq. 29, Prop. 12)."""
        return self.expected.num_tokens * self.selection_probability - self.expected.target_load

    @property
    def variance(self) -> float:
        """E ||g - E g||^2 = T (K - sum pi^2) (Prop. 13)."""
        return float(
            self.expected.num_tokens * (self.expected.top_k - (self.selection_probability**2).sum())
        )

    @property
    def second_moment(self) -> float:
        """E ||g||^2 (Prop. 13)."""
        return float((self.gradient**2).sum() + self.variance)

    @property
    def error(self) -> float:
        """What the quadrature estimates its error to be; above the tolerance if the panels ran out
        before.
        """
        return self._adapted[1]

    @property
    def _grid(self) -> _QuadratureGrid:
        return self._adapted[0]

    @cached_property
    def _adapted(self) -> tuple[_QuadratureGrid, float]:
        return _adapted(self)

    def look(self, v: Floats, weights: Floats) -> _QuadratureGrid:
        """The law and the cheap probabilities at points v."""
        law, at = self.expected.law, v[:, None] - self.shift
        arrays = (np.ascontiguousarray(each(at).T) for each in (law.density, law.below, law.above))
        density, below, above = arrays
        return _QuadratureGrid(
            v, weights, density, below, above, chosen_if_at(below, above, self.expected.top_k)
        )


@dataclass(frozen=True)
class _QuadratureGrid:
    """Points v with weights, and at each, per expert (E, n): the law, and the chance of being
    chosen when lying there.
    """

    v: Floats
    weights: Floats
    density: Floats
    below: Floats
    above: Floats
    chosen: Floats

    def take(self, points: Ints) -> _QuadratureGrid:
        return _QuadratureGrid(*(each[..., points] for each in vars(self).values()))


def laplacian(weight: Floats) -> Floats:
    """diag(row sums) - w."""
    return np.diag(weight.sum(1)) - weight


def least_weight(law: Law, top_k: int, kappa: float) -> float:
    """c_K = inf of min_kl w_kl(p) over shifts of diameter at most 1 - kappa (sec. 5.6), searched at
    two-level shifts.

    Some experts are up by 1 - kappa and the rest down: all numbers of them, the most and the least
    liked first. That is where the least was always found; what is returned is a value w attains, so
    c_K is at most that.
    """
    expected = Expected(law, top_k)
    order = np.argsort(law.quantile(0.5))
    least = np.inf
    for up in range(law.num_experts):
        for chosen in (order[:up], order[law.num_experts - up :]):
            shift = np.zeros(law.num_experts)
            shift[chosen] = 1 - kappa
            weight = _finely(expected.at(shift))
            least = min(least, float(weight[~np.eye(len(weight), dtype=bool)].min()))
    return least


def _finely(point: AtShift) -> Floats:
    """Boundary weights on a fixed fine grid: relative accuracy for numbers far below any absolute
    tolerance.
    """
    edges = _edges(point)
    edges = np.unique(np.concatenate([np.linspace(a, b, 9) for a, b in pairwise(edges)]))
    grid = point.look(*_nodes(edges[:-1], edges[1:]))
    return boundary_pairs(grid.density, grid.below, grid.above, grid.weights, point.expected.top_k)


def _adapted(point: AtShift) -> tuple[_QuadratureGrid, float]:
    """Panels halved until the integrals over a panel and over its halves agree, and by how much
    they do not, summed.
    """
    edges = _edges(point)
    low, high = edges[:-1], edges[1:]
    grid = point.look(*_nodes(low, high))
    accepted: list[_QuadratureGrid] = []
    spent, left = 0, 0.0
    while low.size:
        middle = (low + high) / 2
        halves = np.stack([low, middle], 1).ravel(), np.stack([middle, high], 1).ravel()
        finer = point.look(*_nodes(*halves))
        parts = _integrals(point, finer, 2 * low.size).reshape(-1, low.size, 2).sum(2)
        error = np.abs(_integrals(point, grid, low.size) - parts).max(0)
        spent += low.size
        done = (error <= point.expected.tolerance / 10) | (spent > MOST_PANELS)
        accepted.append(grid.take(_nodes_of(done)))
        left += float(error[done].sum())
        again = np.repeat(~done, 2)
        low, high, grid = halves[0][again], halves[1][again], finer.take(_nodes_of(again))
    return _joined(accepted), left


def _nodes_of(panels: Bools) -> Ints:
    return np.flatnonzero(np.repeat(panels, NODES.size))


def _joined(grids: list[_QuadratureGrid]) -> _QuadratureGrid:
    """One grid of many, padded to whole BLOCKs by repeating the last point with weight 0."""
    columns = {
        name: np.concatenate([getattr(grid, name) for grid in grids], axis=-1)
        for name in vars(grids[0])
    }
    size = columns["v"].size
    kept = np.minimum(np.arange(size + -size % BLOCK), size - 1)
    columns = {name: np.ascontiguousarray(each[..., kept]) for name, each in columns.items()}
    columns["weights"][size:] = 0.0
    return _QuadratureGrid(**columns)


def _edges(point: AtShift) -> Floats:
    """Where panels meet at first: the corners, as long as there are not too many, and a cut above
    what cannot matter.
    """
    corners = (point.expected.law.corners + point.shift[:, None]).ravel()
    low, high = point.shift.min(), point.shift.max() + 1  # scores lie in (0, 1)
    low = max(low, _first_relevant_point(point, low, high))
    inner = np.unique(np.round(corners[(corners > low) & (corners < high)], 13))
    if inner.size > MOST_PANELS // 4:
        inner = np.linspace(low, high, 65)[1:-1]
    return np.unique(np.concatenate([[low], inner, np.linspace(low, high, 9)[1:-1], [high]]))


def _first_relevant_point(point: AtShift, low: float, high: float) -> float:
    """A v below which even the most hopeful expert is chosen with probability under 1e-18."""
    v = np.linspace(low, high, BLOCK)
    hopeless = point.look(v, v).chosen.max(0) < 1e-18
    return float(v[max(int(np.argmin(hopeless)) - 1, 0)])


def _nodes(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Gauss-Legendre points and weights of panels, padded to whole BLOCKs by points of weight 0."""
    half = (high - low)[:, None] / 2
    v, weights = (low[:, None] + half * (NODES + 1)).ravel(), (half * GAUSS).ravel()
    spare = -v.size % BLOCK
    return np.pad(v, (0, spare), mode="edge"), np.pad(weights, (0, spare))


def _integrals(point: AtShift, grid: _QuadratureGrid, panels: int) -> Floats:
    """(E+1, panels): each panel's part of pi, and of the mean over experts of the boundary weights."""
    grid = _joined([grid.take(np.arange(panels * NODES.size))])
    total = boundary_total(grid.density, grid.below, grid.above, point.expected.top_k) / len(
        grid.density
    )
    values = np.vstack([grid.density * grid.chosen, total]) * grid.weights
    return values[:, : panels * NODES.size].reshape(-1, panels, NODES.size).sum(2)


def _newton_direction(weight: Floats, slope: Floats) -> Floats:
    """-Laplacian^+ slope, with a little of the mean degree added where the graph is almost cut."""
    matrix = laplacian(weight)
    E = len(matrix)
    matrix += np.eye(E) * 1e-9 * max(np.trace(matrix) / E, 1e-9) + 1 / E
    return centred(-np.linalg.solve(matrix, slope))


def _downhill(point: AtShift, step: Floats, slope: Floats) -> AtShift:
    """The longest of step, step/2, ... that lessens f, or failing that (at the last digits) the
    last one.
    """
    scale = point.expected.num_tokens
    for halvings in range(40):
        size = 0.5**halvings
        ahead = point.expected.at(point.shift + size * step)
        if ahead.dual - point.dual <= 1e-4 * size * scale * float(slope @ step) + 1e-13 * abs(
            point.dual
        ):
            break
    return ahead
