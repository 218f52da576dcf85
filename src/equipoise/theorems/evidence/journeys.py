"""Evidence for statements 16 and 17: the regret experiment, many seeds of one descent.

    p^(n+1) = project(p^n - eps_n (A(p^n) - L))                                    (eq. 36)
    R_N     = sum_n f_n(p^n) - f_n(p*),     f_n the dual of the n-th batch         (eq. 28)

eps_n is 1/(mu n), or 1/(mu sqrt n), which needs no strong convexity. The paper's mu, from c_K, is
so small that its first step leaves the domain (errata 11). Here mu is local, a share of the modulus
at p*, and shifts are projected on the domain of sec. 5.5, {sum 0, max - min <= 1 - kappa}.

Tokens are drawn from a law, or from the rows of a recorded batch: then one training is enough, and
softmax gates are as good as any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.expected.dual import Expected
from equipoise.expected.empirical import EmpiricalDual
from equipoise.optimum.arrays import Floats, Ints
from equipoise.theorems.registry import EvidenceKind, Setting
from equipoise.theorems.verdict import require_hypothesis
from equipoise.trace import Record, Trace

STEP_SCHEDULES = ("1/n", "1/sqrt n")
DRAWN_TOKENS = 64
"""T of the descents on a recorded batch"""


@dataclass(frozen=True)
class Journey:
    """Many seeds of the same descent."""

    expected: Expected | EmpiricalDual
    best: Floats
    """(E) p*"""
    mu: float
    """of the step sizes; 0 where strong convexity is not claimed"""
    kappa: float
    step_sizes: Floats
    """(N) eps_n"""
    shifts: Floats
    """(N+1, S, E): p^1 ... p^(N+1) of S seeds"""
    regrets: Floats
    """(N, S): each round's f_n(p^n) - f_n(p*)"""
    squares: Floats
    """(N, S): each round's |A(p^n) - L|^2, whose mean given p^n is the exact second moment"""
    number: int = 0
    layer: str = ""

    @property
    def rounds(self) -> int:
        return len(self.regrets)

    @property
    def regret(self) -> tuple[float, float]:
        """The mean of R_N over seeds, and its standard error."""
        return mean_and_error(self.regrets.sum(0))

    @cached_property
    def step_costs(self) -> Floats:
        """(S) sum_n eps_n |A(p^n) - L|^2 / 2."""
        return self.step_sizes @ self.squares / 2

    @property
    def collapse(self) -> float:
        """sigma^2 = T^2 (K - K^2/E)."""
        T, K, E = self.expected.num_tokens, self.expected.top_k, self.best.size
        return T * T * (K - K * K / E)

    @property
    def greatest_distance(self) -> float:
        """The most that |p - p*|^2 can be: E numbers of sum 0 and range D have |p|^2 <= E D^2/4."""
        return float(self.best.size * (1 - self.kappa) ** 2)


RepeatedSource = Journey | Expected | EmpiricalDual | Trace | Iterable[Journey]


def mean_and_error(sample: Floats) -> tuple[float, float]:
    """Of a sample over seeds."""
    return float(sample.mean()), float(sample.std(ddof=1) / np.sqrt(sample.size))


def run_descents(
    expected: Expected | EmpiricalDual,
    rounds: int,
    seeds: int,
    *,
    schedule: str = "1/n",
    share: float = 0.5,
    kappa: float = 0.1,
    seed: int = 0,
) -> Journey:
    """The experiment: `seeds` descents from p = 0 by 1/(mu n) or 1/(mu sqrt n), mu = share *
    modulus at p*, or less where the curvature between p* and other shifts is.

    Example:
        >>> from equipoise.expected.laws import Uniform
        >>> journey = run_descents(Expected(Uniform(8), 2, num_tokens=16), rounds=50, seeds=8)
        >>> mean, error = journey.regret
    """
    if schedule not in STEP_SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(STEP_SCHEDULES)}, not {schedule!r}")
    best = expected.minimiser()
    mu = share * expected.convexity_modulus(best)
    mu = _allowed_mu(expected, best, mu, 1 - kappa, rounds)
    step_sizes = 1 / (mu * np.arange(1, rounds + 1) ** (1.0 if schedule == "1/n" else 0.5))
    rng = np.random.default_rng(seed)
    shifts, regrets, squares = _descend(expected, best, step_sizes, 1 - kappa, seeds, rng)
    claimed = mu if schedule == "1/n" else 0.0
    return Journey(expected, best, claimed, kappa, step_sizes, shifts, regrets, squares)


def _descend(
    expected: Expected | EmpiricalDual,
    best: Floats,
    step_sizes: Floats,
    diameter: float,
    seeds: int,
    rng: np.random.Generator,
) -> tuple[Floats, Floats, Floats]:
    """Shifts, regrets and squared gaps of descents with these steps: see Journey."""
    rounds, E, target = step_sizes.size, best.size, expected.target_load
    shifts = np.zeros((rounds + 1, seeds, E))
    regrets, squares = np.empty((rounds, seeds)), np.empty((rounds, seeds))
    for n in range(rounds):
        scores = expected.sample(rng, seeds * expected.num_tokens).reshape(seeds, -1, E)
        here, loads = _batch_duals(scores + shifts[n][:, None], expected.top_k)
        there, _ = _batch_duals(scores + best, expected.top_k)
        regrets[n] = here - target * shifts[n].sum(1) - (there - target * best.sum())
        squares[n] = ((loads - target) ** 2).sum(1)
        shifts[n + 1] = project_shifts(shifts[n] - step_sizes[n] * (loads - target), diameter)
    return shifts, regrets, squares


def _allowed_mu(
    expected: Expected | EmpiricalDual, best: Floats, mu: float, diameter: float, rounds: int
) -> float:
    """The first of mu and smaller ones that the proof's inequality allows at the shifts which a few
    descents by 1/(mu n) visit, early and at their end.
    """
    rounds = max(rounds, 10)
    while mu > 1e-12 * expected.num_tokens:
        step_sizes = 1 / (mu * np.arange(1, rounds + 1))
        shifts, _, _ = _descend(expected, best, step_sizes, diameter, 12, np.random.default_rng(1))
        visited = shifts[[0, 1, 2, 5, 10, rounds]].reshape(-1, best.size)
        allowed = min(curvature_between(expected, shift, best) for shift in visited)
        # other seeds visit other shifts: leave some room
        if mu <= 0.8 * allowed:
            return mu
        mu = 0.7 * min(allowed, mu)
    raise ValueError(
        "the expected dual is flat between its minimiser and the shifts that descents visit (do "
        "the experts' scores overlap?), so there is no 1/(mu n)"
    )


def curvature_between(expected: Expected | EmpiricalDual, shift: Floats, best: Floats) -> float:
    """The largest mu with 2 (f(p) - f(p*)) + mu |p - p*|^2 <= 2 <grad f(p), p - p*>; inf at p*."""
    point, away = expected.at(shift), shift - best
    if away @ away < 1e-12:
        return np.inf
    excess = float(point.gradient @ away) - (point.dual - expected.dual(best))
    return 2 * excess / float(away @ away)


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
    """The journeys in a source; of a law or of a trace's first whole batch, 64 or 32 descents by
    each schedule.
    """
    if isinstance(source, Journey):
        return [source]
    if isinstance(source, Expected | EmpiricalDual):
        return [run_descents(source, 200, 64, schedule=each) for each in STEP_SCHEDULES]
    if isinstance(source, Trace):
        for layer in range(len(source.layers)):
            for step in source.whole_steps(layer):
                record = source.record(layer, step)
                return journeys_of_record(record, source.top_k, source.layers[layer])
        require_hypothesis(False, "no batch's scores were kept whole")
    return list(source)  # type: ignore[arg-type]


def journeys_of_record(record: Record, top_k: int, layer: str = "") -> list[Journey]:
    """Descents on tokens drawn from a batch that was kept whole."""
    scores = record.scores.astype(np.float64)
    T, E = scores.shape
    require_hypothesis(top_k < E, "K = E: every shift gives the same loads")
    require_hypothesis(T >= 8 * E, f"{T} tokens are too few to draw others from")
    empirical = EmpiricalDual(scores, top_k, DRAWN_TOKENS)
    found = []
    for schedule in STEP_SCHEDULES:
        try:
            journey = run_descents(empirical, 100, 32, schedule=schedule, share=0.25)
        except ValueError as reason:
            require_hypothesis(False, str(reason))
        found.append(dataclasses.replace(journey, number=record.step, layer=layer))
    return found


JOURNEYS = EvidenceKind(Setting.REPEATED_DESCENTS, journeys_of)
"""for statements about expectations over seeds"""
