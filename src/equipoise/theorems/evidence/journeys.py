"""Evidence for statements 16 and 17: the regret experiment, many seeds of one descent.

    p^(n+1) = project(p^n - (A(p^n) - L) / (mu n))                                 (eq. 36)
    R_N     = sum_n f_n(p^n) - f_n(p*),     f_n the dual of the n-th batch         (eq. 28)

The paper's mu, from c_K, is so small that its first step leaves the domain (errata 11). Here mu is
local, a share of the exact modulus at p*, and shifts are projected on the domain of sec. 5.5,
{sum 0, max - min <= 1 - kappa}.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.expected.dual import Expected
from equipoise.optimum.arrays import Floats, Ints
from equipoise.theorems.registry import EvidenceKind, Setting
from equipoise.theorems.verdict import require_hypothesis
from equipoise.trace import Trace

ONE_TRAINING = (
    "one training is one seed, and its scores drift: see "
    "equipoise.theorems.evidence.journeys.run_descents"
)


@dataclass(frozen=True)
class Journey:
    """Many seeds of the same descent."""

    expected: Expected
    best: Floats
    """(E) p*"""
    mu: float
    kappa: float
    shifts: Floats
    """(N+1, S, E): p^1 ... p^(N+1) of S seeds"""
    regrets: Floats
    """(N, S): each round's f_n(p^n) - f_n(p*)"""
    number: int = 0

    @property
    def rounds(self) -> int:
        return len(self.regrets)

    @property
    def regret(self) -> tuple[float, float]:
        """The mean of R_N over seeds, and its standard error."""
        totals = self.regrets.sum(0)
        return float(totals.mean()), float(totals.std(ddof=1) / np.sqrt(totals.size))

    @property
    def collapse(self) -> float:
        """sigma^2 = T^2 (K - K^2/E)."""
        T, K, E = self.expected.num_tokens, self.expected.top_k, self.best.size
        return T * T * (K - K * K / E)

    @property
    def variance_at_best(self) -> float:
        """T K (1 - K/E)."""
        T, K, E = self.expected.num_tokens, self.expected.top_k, self.best.size
        return T * K * (1 - K / E)

    def bound(self, variance: float) -> float:
        """variance (1 + ln N) / 2 mu."""
        return float(variance / (2 * self.mu) * (1 + np.log(self.rounds)))


RepeatedSource = Journey | Expected | Trace


def run_descents(
    expected: Expected,
    rounds: int,
    seeds: int,
    *,
    share: float = 0.5,
    kappa: float = 0.1,
    seed: int = 0,
) -> Journey:
    """The experiment: `seeds` descents from p = 0 by 1/(mu n), mu = share * modulus at p*.

    Example:
        >>> from equipoise.expected.laws import Uniform
        >>> journey = run_descents(Expected(Uniform(8), 2, num_tokens=16), rounds=50, seeds=8)
        >>> mean, error = journey.regret
    """
    rng, E = np.random.default_rng(seed), expected.law.num_experts
    best = expected.minimiser()
    mu = share * expected.convexity_modulus(best)
    if not mu > 0:
        raise ValueError(
            "the expected dual is flat at its minimiser (do the experts' scores overlap?), so "
            "there is no 1/(mu n)"
        )
    shifts, regrets = np.zeros((rounds + 1, seeds, E)), np.empty((rounds, seeds))
    for n in range(rounds):
        scores = expected.law.sample(rng, seeds * expected.num_tokens).reshape(seeds, -1, E)
        here, loads = _batch_duals(scores + shifts[n][:, None], expected.top_k)
        there, _ = _batch_duals(scores + best, expected.top_k)
        target = expected.target_load
        regrets[n] = here - target * shifts[n].sum(1) - (there - target * best.sum())
        shifts[n + 1] = project_shifts(shifts[n] - (loads - target) / (mu * (n + 1)), 1 - kappa)
    return Journey(expected, best, mu, kappa, shifts, regrets)


def _batch_duals(shifted: Floats, top_k: int) -> tuple[Floats, Ints]:
    """Of (S, T, E): the sums of the K largest, and how often each expert is among them. Ties have
    probability 0.
    """
    chosen = np.argpartition(shifted, -top_k, axis=2)[:, :, -top_k:]
    worth = np.take_along_axis(shifted, chosen, 2).sum((1, 2))
    loads = np.stack([np.bincount(each.ravel(), minlength=shifted.shape[2]) for each in chosen])
    return worth, loads


def project_shifts(shifts: Floats, diameter: float) -> Floats:
    """(S, E) on {sum 0, max - min <= diameter}: the nearest point there.

    It is clip(p, m, m + diameter) for the m that keeps the sum (the condition for the best m),
    found by bisection.
    """
    shifts = shifts - shifts.mean(1, keepdims=True)
    wide = np.ptp(shifts, axis=1) > diameter
    low, high = shifts.min(1, keepdims=True) - diameter, shifts.max(1, keepdims=True)
    for _ in range(60 if wide.any() else 0):
        middle = (low + high) / 2
        short = np.clip(shifts, middle, middle + diameter).sum(1, keepdims=True) < 0
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    clipped = np.clip(shifts, low, low + diameter)
    return np.where(wide[:, None], clipped - clipped.mean(1, keepdims=True), shifts)


def journeys_of(source: RepeatedSource) -> list[Journey]:
    """The journey in a source; of a bare law, 64 descents of 200 steps."""
    if isinstance(source, Expected):
        return [run_descents(source, rounds=200, seeds=64)]
    require_hypothesis(isinstance(source, Journey), ONE_TRAINING)
    return [source]  # type: ignore[list-item]


JOURNEYS = EvidenceKind(Setting.REPEATED_DESCENTS, journeys_of)
"""for statements about expectations over seeds"""
