"""Hindsight: what a rule's shifts lost, once all batches are known.

With f_n the dual of batch n (problem.py) and p^n the shift it was routed by, the paper's regret
(eq. 28) compares with the best shift that stays, and dynamic regret with each batch's own optimum:

    R   = sum_n f_n(p^n) - f_n(p^)          p^ the optimum of all batches as one
    R_d = sum_n f_n(p^n) - f_n(p*_n)        p*_n the optimum of batch n, never below 0

R may be below 0: a rule that follows drifting scores can beat every shift that stays. How hard
following is says the path length of the optima, sum_n |p*_(n+1) - p*_n|.

Where targets are no whole numbers, f_n lets a load be either neighbour, and is no longer the same
for p and p + c. Routing is, so a shift is judged at its best c: then the lowest shifts have the
greater loads (`dual_at_shift`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from equipoise.optimum.problem import Problem
from equipoise.optimum.solve import solve
from equipoise.optimum.sums import value_and_best
from equipoise.optimum.topk import choice_under
from equipoise.storage.arrays import Array

MOST_JUDGED = 128
"""batches that are solved: a longer row is thinned evenly"""
MOST_SCORES, MOST_SCORES_OF_MANY = 1 << 26, 1 << 24
"""in the union of all batches, for up to 512 experts and for more: seconds, and 256 MB"""


@dataclass(frozen=True)
class Hindsight:
    """The two comparators of a row of batches."""

    fixed_duals: tuple[float, ...]
    """f_n(p^) of each batch"""
    own_duals: tuple[float, ...]
    """f_n(p*_n) of each batch, its optimum's value"""
    path_length: float
    """sum of |p*_(n+1) - p*_n| between successive batches"""
    best_fixed: Array
    """(E,) p^"""

    def regret_of(self, duals: Sequence[float]) -> Regret:
        """The regret of shifts with these f_n(p^n), one for each batch."""
        if len(duals) != len(self.own_duals):
            raise ValueError(f"{len(duals)} duals for {len(self.own_duals)} batches")
        met, fixed = math.fsum(duals), math.fsum(self.fixed_duals)
        own = math.fsum(self.own_duals)
        return Regret(met - fixed, met - own, own, self.path_length, len(duals))


@dataclass(frozen=True)
class Regret:
    """What shifts lost in hindsight, in score."""

    fixed: float
    """against the best shift that stays; below 0 where following beat it"""
    dynamic: float
    """against each batch's own optimum"""
    optimum: float
    """what all batches' own optima are worth together"""
    path_length: float
    batches: int

    @property
    def fixed_share(self) -> float:
        """`fixed` as a share of the optimum."""
        return self.fixed / abs(self.optimum) if self.optimum else 0.0

    @property
    def dynamic_share(self) -> float:
        """`dynamic` as a share of the optimum."""
        return self.dynamic / abs(self.optimum) if self.optimum else 0.0


def look_back(
    batches: Sequence[Array], top_k: int, *, target: Sequence[float] | None = None
) -> Hindsight:
    """Solve every batch, and all of them as one.

    Args:
        batches: scores (T_n, E) each.
        top_k: K.
        target: weights of the experts' loads; equal by default.

    Example:
        >>> import numpy as np
        >>> batches = list(np.random.default_rng(0).random((3, 64, 4)))
        >>> found = look_back(batches, 2)
        >>> duals = [dual_at_shift(batch, 2, np.zeros(4)) for batch in batches]
        >>> found.regret_of(duals).dynamic >= 0
        True
    """
    if not batches:
        raise ValueError("there is no batch to look back on")
    union = np.concatenate(batches)
    best = _centred(solve(union, top_k, target=wanted_loads(target, len(union), top_k)).shift)
    own, duals, shift = [], [], best
    for batch in batches:
        found = solve(batch, top_k, target=wanted_loads(target, len(batch), top_k), shift=shift)
        shift = found.shift
        duals.append(found.value)
        own.append(_centred(shift))
    path = [float(np.linalg.norm(after - before)) for before, after in pairwise(own)]
    fixed = [dual_at_shift(batch, top_k, best, target=target) for batch in batches]
    return Hindsight(tuple(fixed), tuple(duals), math.fsum(path), best)


def dual_at_shift(
    scores: Array, top_k: int, shift: Array, *, target: Sequence[float] | None = None
) -> float:
    """f(p) at the best p + c (see above): at least the value of every assignment with these loads.

    Args:
        scores: (T, E).
        top_k: K.
        shift: (E,) p.
        target: weights of the experts' loads; equal by default.
    """
    problem = Problem.of(scores, top_k, wanted_loads(target, len(scores), top_k))
    shift = np.asarray(shift, np.float64)
    _, best = value_and_best(
        problem.scores, shift, choice_under(problem.scores, shift, problem.top_k)
    )
    return math.fsum([best, *(-loads_priced_at(problem, shift) * shift)])


def loads_priced_at(problem: Problem, shift: Array) -> Array:
    """(E,) whole target loads: where either neighbour is allowed, the greater for the experts of
    the lowest shifts. That is where f(p + c) is least in c.
    """
    loads, free = problem.lower.copy(), np.flatnonzero(problem.upper > problem.lower)
    more = problem.num_tokens * problem.top_k - int(loads.sum())
    lowest = free[np.argsort(shift[free], kind="stable")[:more]]
    loads[lowest] += 1
    return loads


def wanted_loads(target: Sequence[float] | None, tokens: int, top_k: int) -> Array | None:
    """Loads of weights, None for equal ones."""
    if target is None:
        return None
    weights = np.asarray(target, np.float64)
    return weights * (tokens * top_k / weights.sum())


def judged_steps(steps: Sequence[int], tokens: int, experts: int) -> list[int]:
    """Those of the steps that are solved: all, or as many as seconds and memory allow, evenly."""
    most = (MOST_SCORES if experts <= 512 else MOST_SCORES_OF_MANY) // max(1, tokens * experts)
    return list(thin_evenly(steps, max(1, min(MOST_JUDGED, most))))


def thin_evenly(items: Sequence[int], most: int) -> Iterable[int]:
    """At most `most` of the items, the first and the last among them."""
    if len(items) <= most:
        return items
    return _at_places(items, np.linspace(0, len(items) - 1, most).round().astype(int))


def _at_places(items: Sequence[int], places: Array) -> Iterator[int]:
    return (items[int(place)] for place in places)


def _centred(shift: Array) -> Array:
    """Routing does not see a constant, and p* is compared with others."""
    return np.asarray(shift, np.float64) - np.mean(shift)
