"""One update on fixed scores, and what the deterministic statements ask about it.

Choices are those of scores + shift in the precision they were made in, ties to the lowest index,
for both iterates alike (errata 16); everything else is float64. Recorded loads are taken as
recorded: if they are not those of the choices, and no tie that another router breaks otherwise
explains it, the statements that use them will not hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.optimum.arrays import Bools, Floats, Ints
from equipoise.optimum.loop import choose_top_k
from equipoise.theorems.evidence.ties import ties_explain_loads


def lagrangian(scores: Floats, shift: Floats, choice: Bools, target: Floats) -> float:
    """L(x, p) (eq. 9), summed as gamma x + p (A - L), where less cancels."""
    return float(scores[choice].sum() + shift @ (choice.sum(0) - target))


def reduced_dual(scores: Floats, shift: Floats, top_k: int, target: Floats) -> float:
    """f(p) = sum of the K largest of gamma + p, minus sum L p: the Lagrangian at its best x."""
    return lagrangian(scores, shift, choose_top_k(scores + shift, top_k), target)


def threshold_margins(shifted: Floats, top_k: int) -> Floats:
    """(T) K-th less (K+1)-th largest; inf where all are chosen."""
    if top_k == shifted.shape[1]:
        return np.full(len(shifted), np.inf)
    pair = np.partition(shifted, (-top_k - 1, -top_k), axis=1)[:, [-top_k - 1, -top_k]]
    return pair[:, 1] - pair[:, 0]


@dataclass(frozen=True)
class UpdateStep:
    """One update on fixed scores: the shift before and after, and the choices under both."""

    number: int
    scores: Floats
    """(T, E)"""
    top_k: int
    target: Floats
    """(E) L, per expert"""
    shift: Floats
    shift_after: Floats
    loads: Ints
    """(E) as recorded"""
    step_size: Floats
    """(E) per token of gap: shift_after = shift + step_size (target - loads)"""
    before: Bools
    """(T, E) the choices under `shift`"""
    after: Bools
    """(T, E) the choices under `shift_after`"""
    loads_after: Ints
    rounding: float
    """how far a recorded shift may be from the real number that was meant"""
    layer: str = ""

    @cached_property
    def gap(self) -> Floats:
        """L - A."""
        return self.target - self.loads

    @cached_property
    def sign(self) -> Floats:
        """s_k: 1 for underloaded, 0 for balanced, -1 for overloaded experts."""
        return np.sign(self.gap)

    @property
    def moved(self) -> Floats:
        """p' - p."""
        return self.shift_after - self.shift

    @cached_property
    def shifted(self) -> Floats:
        return self.scores + self.shift

    @cached_property
    def shifted_after(self) -> Floats:
        return self.scores + self.shift_after

    @cached_property
    def margins(self) -> Floats:
        """(T) K-th less (K+1)-th shifted score, before."""
        return threshold_margins(self.shifted, self.top_k)

    @cached_property
    def ties_broken_otherwise(self) -> bool:
        """Whether the recorded loads are not those of `before`, and ties explain why."""
        if (self.loads == self.before.sum(0)).all():
            return False
        return ties_explain_loads(self.shifted, self.top_k, self.loads, self.tiny)

    @cached_property
    def changed(self) -> Ints:
        """The tokens whose choice changed."""
        return np.flatnonzero((self.before != self.after).any(1))

    @cached_property
    def benefit(self) -> Floats:
        """b(i) (eq. 12) of the changed tokens: what their new choice is worth more than the old
        one, under the new shift.
        """
        worth = self.shifted_after[self.changed]
        new = (worth * self.after[self.changed]).sum(1)
        return new - (worth * self.before[self.changed]).sum(1)

    @cached_property
    def change(self) -> float:
        """L(x', p') - L(x, p)."""
        old = lagrangian(self.scores, self.shift, self.before, self.target)
        return lagrangian(self.scores, self.shift_after, self.after, self.target) - old

    @cached_property
    def tolerance(self) -> float:
        """What rounding may do to a sum over the batch: 1e-10 of its scores, and the rounding of
        the recorded shifts.
        """
        scores = 1e-10 * np.abs(self.scores[self.before]).sum()
        return float(scores + self.rounding * (np.abs(self.gap).sum() + 1))

    @property
    def tiny(self) -> float:
        """What rounding may do to one difference of shifted scores."""
        return 2 * self.rounding
