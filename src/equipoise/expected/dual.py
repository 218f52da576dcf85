"""The expected dual and its derivatives, exactly: the paper's sec. 5 as numbers (never by its sums
over subsets).

For independent scores with densities phi_k, top-K of scores + p, and N_S the number of experts
outside S above v:

    pi_k(p) = int phi_k(v - p_k) P(N_k <= K - 1) dv                     selection probability
    w_kl(p) = int phi_k(v - p_k) phi_l(v - p_l) P(N_kl = K - 1) dv      boundary weight
    f(p)    = T sum_k int v phi_k(v - p_k) P(N_k <= K - 1) dv - L sum p

(Props. 12 and 14; f is the expected dual). Its gradient is T pi - L, its Hessian T Laplacian(w),
and its modulus on sum p = 0 is T lambda_2(Laplacian).

Integrals over v are in quadrature.py, probabilities in counting.py. `at(p)` shares the work between
the quantities.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from equipoise.expected.counting import boundary_pairs
from equipoise.expected.laws import Law
from equipoise.expected.moments import LoadMoments
from equipoise.expected.quadrature import (
    QuadratureGrid,
    ShiftedLaw,
    adapted_grid,
    fine_grid,
    fine_nodes,
)
from equipoise.optimum.arrays import Floats, centred


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
    def num_experts(self) -> int:
        return self.law.num_experts

    @property
    def target_load(self) -> float:
        """L = K T / E."""
        return self.top_k * self.num_tokens / self.law.num_experts

    def sample(self, rng: np.random.Generator, tokens: int) -> Floats:
        """(tokens, E) scores."""
        return self.law.sample(rng, tokens)

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
        """T lambda_2: the curvature of f at p in its flattest zero-sum direction; 0 if K = E."""
        eigenvalues = np.linalg.eigvalsh(laplacian(self.at(shift).boundary_weight))
        return self.num_tokens * float(eigenvalues[1])

    def minimiser(self) -> Floats:
        """p* with sum 0, by Newton's method from the shift that makes all experts'
        (1 - K/E)-quantiles equal.
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
            point = _step_downhill(point, _newton_direction(point.boundary_weight, slope), slope)
        raise ValueError(
            f"the minimiser was not found: loads are off by {np.abs(slope).max():.1e} of the "
            "tokens after 60 steps"
        )


@dataclass(frozen=True)
class AtShift(LoadMoments):
    """The expected quantities at one shift."""

    expected: Expected
    shift: Floats

    @property
    def num_tokens(self) -> int:
        return self.expected.num_tokens

    @property
    def top_k(self) -> int:
        return self.expected.top_k

    @cached_property
    def selection_probability(self) -> Floats:
        grid = self._grid
        return (grid.density * grid.chosen) @ grid.weights

    @cached_property
    def dual(self) -> float:
        grid = self._grid
        worth = ((grid.density * grid.chosen) @ (grid.weights * grid.v)).sum()
        target = self.expected.target_load * self.shift.sum()
        return float(self.expected.num_tokens * worth - target)

    @cached_property
    def boundary_weight(self) -> Floats:
        return self._grid.boundary_weight(self.expected.top_k)

    @property
    def error(self) -> float:
        """The quadrature's own estimate; above the tolerance if it ran out of panels."""
        return self._adapted[1]

    @property
    def _grid(self) -> QuadratureGrid:
        return self._adapted[0]

    @cached_property
    def _adapted(self) -> tuple[QuadratureGrid, float]:
        return adapted_grid(self._shifted_law, self.expected.tolerance)

    @property
    def _shifted_law(self) -> ShiftedLaw:
        return ShiftedLaw(self.expected.law, self.shift, self.expected.top_k)


def laplacian(weight: Floats) -> Floats:
    """diag(row sums) - w."""
    return np.diag(weight.sum(1)) - weight


def certified_least_weight(law: Law, top_k: int, kappa: float) -> float:
    """A lower bound of c_K = inf of min_kl w_kl(p) over shifts of diameter at most D = 1 - kappa
    (sec. 5.6), for every such shift at once.

    Routing sees no constant, so 0 <= p_j <= D. For a threshold v in (D, 1) every v - p_j lies
    between v - D and v, inside (0, 1), and each factor of w_kl's integrand is at least

        density_k(v - p_k) >= the least of density_k between v - D and v
        P(j lies below v)  >= below_j(v - D),        P(j lies above v) >= above_j(v)

    All terms of the product are positive, so the integral over (D, 1) with these in their place is
    a lower bound. Of E like uniform experts it is kappa^(E-1) / (E - 1): extremely small (errata
    9), and never 0 where densities are positive, unless it is below the least float64.
    """
    D = 1 - kappa
    corners = np.concatenate([law.corners.ravel(), law.corners.ravel() + D])
    inner = corners[(corners > D) & (corners < 1)]
    v, weights = fine_nodes(np.unique(np.concatenate([np.linspace(D, 1, 9), inner])))
    high = np.broadcast_to(v[:, None], (v.size, law.num_experts))
    low = high - D
    density, below, above = (
        np.ascontiguousarray(each.T)
        for each in (law.least_density(low, high), law.below(low), law.above(high))
    )
    return _least_pair(boundary_pairs(density, below, above, weights, top_k))


def attained_least_weight(law: Law, top_k: int, kappa: float) -> float:
    """An upper bound of c_K: the least weight found at two-level shifts.

    There some experts are raised by 1 - kappa and the rest not: any number of experts, those with
    the lowest medians or those with the highest. The least was always found among these shifts, but
    that is not proved: what is returned is a value that w attains, so c_K is at most that.
    """
    order = np.argsort(law.quantile(0.5))
    least = np.inf
    for up in range(law.num_experts):
        for chosen in (order[:up], order[law.num_experts - up :]):
            shift = np.zeros(law.num_experts)
            shift[chosen] = 1 - kappa
            weight = fine_grid(ShiftedLaw(law, shift, top_k)).boundary_weight(top_k)
            least = min(least, _least_pair(weight))
    return least


def _least_pair(weight: Floats) -> float:
    return float(weight[~np.eye(len(weight), dtype=bool)].min())


def _newton_direction(weight: Floats, slope: Floats) -> Floats:
    """-Laplacian^+ slope, damped by a small multiple of the mean degree."""
    matrix = laplacian(weight)
    E = len(matrix)
    matrix += np.eye(E) * 1e-9 * max(np.trace(matrix) / E, 1e-9) + 1 / E
    return centred(-np.linalg.solve(matrix, slope))


def _step_downhill(point: AtShift, step: Floats, slope: Floats) -> AtShift:
    """The point after the longest of step, step/2, ... that lowers f; if none does (at the last
    digits), after the last one.
    """
    scale = point.expected.num_tokens
    for halvings in range(40):
        size = 0.5**halvings
        ahead = point.expected.at(point.shift + size * step)
        enough = 1e-4 * size * scale * float(slope @ step) + 1e-13 * abs(point.dual)
        if ahead.dual - point.dual <= enough:
            break
    return ahead
