"""Evidence for the deterministic statements: steps and runs on fixed scores.

A `Step` is one update on a batch: scores, shift before and after, loads and step sizes as they were
recorded, and the choices (T, E) under both shifts. A `Run` is a row of steps on the same scores.
Evidence comes from

    a problem    run through the paper's loop here (`run_loop`), in float64
    a Trace      each batch whose scores were kept whole is a run of one step: between the shift before and after its update

Choices are those of scores + shift in the precision they were made in, ties to the lowest index,
for both iterates alike (errata 16); everything else is float64. Recorded loads are taken as
recorded: if they are not those of the choices, and no tie that another router breaks otherwise
explains it, the statements that use them will not hold.

Routing does not see a constant added to every shift, nor does the Lagrangian (loads and targets
have the same sum), so a rule that centres its step is the same rule here: hypotheses about the
update are checked up to a constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from equipoise.optimum.loop import Array, FixedScores, Path, Rule, choose, deepseek, iterate
from equipoise.theorems.verdict import require
from equipoise.trace import Record, Trace

Choice = NDArray[np.bool_]


def lagrangian(scores: Array, shift: Array, choice: Choice, target: Array) -> float:
    """L(x, p) = sum (gamma + p) x - sum L p (eq. 9), summed as gamma x + p (A - L), where less
    cancels.
    """
    return float(scores[choice].sum() + shift @ (choice.sum(0) - target))


def reduced_dual(scores: Array, shift: Array, top_k: int, target: Array) -> float:
    """f(p) = sum of the K largest of gamma + p, minus sum L p: the Lagrangian at its best x."""
    return lagrangian(scores, shift, choose(scores + shift, top_k), target)


def margins_of(shifted: Array, top_k: int) -> Array:
    """(T) K-th less (K+1)-th largest; inf where all are chosen."""
    if top_k == shifted.shape[1]:
        return np.full(len(shifted), np.inf)
    pair = np.partition(shifted, (-top_k - 1, -top_k), axis=1)[:, [-top_k - 1, -top_k]]
    return pair[:, 1] - pair[:, 0]


@dataclass(frozen=True)
class Step:
    """One update on fixed scores."""

    number: int
    scores: Array
    top_k: int
    target: Array
    """(E) L, per expert"""
    shift: Array
    shift_after: Array
    loads: NDArray[np.int64]
    """(E) as recorded"""
    step_size: Array
    """(E) per token of gap: shift_after = shift + step_size (target - loads)"""
    before: Choice
    after: Choice
    loads_after: NDArray[np.int64]
    rounding: float
    """how far a recorded shift may be from the real number that was meant"""
    layer: str = ""

    @cached_property
    def gap(self) -> Array:
        """L - A."""
        return self.target - self.loads

    @cached_property
    def sign(self) -> Array:
        """s_k: 1 for underloaded, 0 for balanced, -1 for overloaded experts."""
        return np.sign(self.gap)

    @property
    def moved(self) -> Array:
        """p' - p."""
        return self.shift_after - self.shift

    @cached_property
    def shifted(self) -> Array:
        return self.scores + self.shift

    @cached_property
    def shifted_after(self) -> Array:
        return self.scores + self.shift_after

    @cached_property
    def margins(self) -> Array:
        """(T) K-th less (K+1)-th shifted score, before."""
        return margins_of(self.shifted, self.top_k)

    @cached_property
    def changed(self) -> NDArray[np.int64]:
        """The tokens whose choice changed."""
        return np.flatnonzero((self.before != self.after).any(1))

    @cached_property
    def benefit(self) -> Array:
        """b(i) (eq. 12) of the changed tokens: what their new choice is worth more than the old
        one, under the new shift.
        """
        worth = self.shifted_after[self.changed]
        return (worth * self.after[self.changed]).sum(1) - (worth * self.before[self.changed]).sum(
            1
        )

    @cached_property
    def change(self) -> float:
        """L(x', p') - L(x, p)."""
        old = lagrangian(self.scores, self.shift, self.before, self.target)
        return lagrangian(self.scores, self.shift_after, self.after, self.target) - old

    @cached_property
    def tolerance(self) -> float:
        """What rounding may do to a sum over the batch: 1e-10 of its scores, and the recorded
        shifts' own rounding.
        """
        return float(
            1e-10 * np.abs(self.scores[self.before]).sum()
            + self.rounding * (np.abs(self.gap).sum() + 1)
        )

    @property
    def tiny(self) -> float:
        """What rounding may do to one difference of shifted scores."""
        return 2 * self.rounding


@dataclass(frozen=True)
class Run:
    """Steps on the same scores. `loads` are the recorded ones, one row more than there are steps."""

    scores: Array
    top_k: int
    target: Array
    path: Path
    step_sizes: Array
    first: int = 0
    rounding: float = 1e-15
    kind: type[np.floating] = np.float64
    """what the choice was made in: a router adds in float32"""
    layer: str = ""

    @property
    def number(self) -> int:
        return self.first

    def __len__(self) -> int:
        return len(self.step_sizes)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps) if len(self) == 1 else self._walk()

    @cached_property
    def _steps(self) -> list[Step]:
        return list(self._walk())

    def _walk(self) -> Iterator[Step]:
        after = self._choice(0)
        for n in range(len(self)):
            before, after = after, self._choice(n + 1)
            shift, shift_after = self.path.shifts[n : n + 2]
            loads, loads_after = self.path.loads[n : n + 2]
            yield Step(
                self.first + n,
                self.scores,
                self.top_k,
                self.target,
                shift,
                shift_after,
                loads,
                self.step_sizes[n],
                before,
                after,
                loads_after,
                self.rounding,
                self.layer,
            )

    def _choice(self, n: int) -> Choice:
        return choose((self.scores + self.path.shifts[n]).astype(self.kind), self.top_k)


class HasScores(Protocol):
    """A problem: FixedScores, or assignment's Problem."""

    @property
    def scores(self) -> Any: ...

    @property
    def top_k(self) -> int: ...


Source = HasScores | Run | Trace | Iterable[Run] | Iterable[Step]


def run_loop(problem: FixedScores, rule: Rule, steps: int, *, shift: Array | None = None) -> Run:
    """The paper's loop on a problem."""
    path = iterate(problem, rule, steps, shift=shift)
    T, E = problem.scores.shape
    target = np.full(E, problem.top_k * T / E)
    gap = target - path.loads[:-1]
    moved = np.array([rule(n + 1, each) for n, each in enumerate(gap)]).reshape(steps, E)
    sizes = np.divide(moved, gap, out=np.zeros_like(moved), where=gap != 0)
    rounding = 4 * np.finfo(np.float64).eps * (1 + np.abs(path.shifts).max())
    return Run(
        np.asarray(problem.scores, np.float64),
        problem.top_k,
        target,
        path,
        sizes,
        rounding=float(rounding),
    )


def runs_of(source: Source) -> Iterator[Run]:
    """The runs in a source. A bare problem goes 200 steps of DeepSeek's rule with u = 1e-3."""
    if isinstance(source, Run):
        yield source
    elif isinstance(source, Trace):
        for layer in range(len(source.layers)):
            for step in source.whole_steps(layer):
                yield run_of_record(source.record(layer, step), source, source.layers[layer])
    elif not isinstance(source, Iterable) or isinstance(source, FixedScores):
        yield run_loop(
            FixedScores(np.asarray(source.scores, np.float64), source.top_k), deepseek(1e-3), 200
        )
    else:
        for piece in source:
            if not isinstance(piece, Run):
                raise TypeError(
                    f"this statement needs runs on fixed scores, not a {type(piece).__name__}"
                )
            yield piece


def steps_of(source: Source) -> Iterator[Step]:
    """The steps in a source."""
    whole = isinstance(source, Run | FixedScores) or not isinstance(source, Iterable)
    for piece in runs_of(source) if whole else source:  # type: ignore[union-attr]
        if isinstance(piece, Run):
            yield from piece
        else:
            yield piece


def run_of_record(record: Record, trace: Trace, layer: str = "") -> Run:
    """A training's step on a batch that was kept whole, as a run of one step on fixed scores."""
    scores = record.scores.astype(np.float64)
    weights = np.ones(scores.shape[1]) if trace.target is None else np.array(trace.target)
    target = trace.top_k * len(scores) * weights / weights.sum()
    per_token = {"counts": 1.0, "tokens": 1 / len(scores), "relative": 1 / target}[record.unit]
    shifts = np.stack([record.shift, record.shift_after]).astype(np.float64)
    kind = np.result_type(
        record.scores, record.shift
    ).type  # a router adds in float32, so it chooses in float32
    after = choose((scores + shifts[1]).astype(kind), trace.top_k)
    loads = np.stack([record.loads, after.sum(0)])
    size = np.abs(shifts).max() + np.abs(scores).max() + np.ptp(shifts, axis=0).max()
    rounding = 4 * float(np.finfo(kind).eps * size)
    sizes = (record.step_size * per_token)[None]
    return Run(
        scores, trace.top_k, target, Path(shifts, loads), sizes, record.step, rounding, kind, layer
    )


def require_known_choices(step: Step) -> None:
    """Hypothesis (eq. 8): the choices are top-K. Ties that a router broke otherwise leave them
    unknown.
    """
    miscounted = np.abs(step.loads - step.before.sum(0)).sum()
    ties = miscounted > 0 and miscounted <= 2 * step.top_k * (step.margins <= step.tiny).sum()
    require(
        not ties,
        "the router broke ties otherwise than by the lowest index, so the choices are not known",
    )


def require_dual_update(step: Step) -> None:
    """Hypothesis (eq. 7): the shift moved by step_size (L - A), up to a constant."""
    require_known_choices(step)
    require(
        bool(np.isfinite(step.step_size).all()),
        "the rule has no step sizes, so its update is not the paper's",
    )
    far = np.ptp(step.moved - step.step_size * step.gap)
    require(
        bool(far <= 4 * step.rounding),
        f"the shift did not move by step size times gap: off by up to {far:.1e}",
    )


def deepseek_rate(step: Step) -> float:
    """Hypothesis (eqs. 3 and 10): the shift moved by u sign(L - A), up to a constant. Gives u, 0 in
    perfect balance.
    """
    require_known_choices(step)
    if not step.gap.any():
        require(
            bool(np.ptp(step.moved) <= 4 * step.rounding),
            "not DeepSeek's step: all is balanced, and the shift moved",
        )
        return 0.0
    require(
        bool((step.sign > 0).any() and (step.sign < 0).any()),
        "loads do not sum to what the targets do",
    )
    up, down = step.moved[step.sign > 0].mean(), step.moved[step.sign < 0].mean()
    u, constant = (up - down) / 2, (up + down) / 2
    off = np.abs(step.moved - u * step.sign - constant).max()
    told = (
        f"not DeepSeek's step: shifts moved by {step.moved.min():.1e} to "
        f"{step.moved.max():.1e}, not all by one u"
    )
    require(bool(off <= 4 * step.rounding < u), told)
    return float(u)


def require_no_ties(step: Step) -> None:
    """Hypothesis: no ties in shifted scores at n and n+1 (errata 3).

    The proofs use less, and less is asked: none between an expert that is chosen and one that is
    not.
    """
    least = min(step.margins.min(), margins_of(step.shifted_after, step.top_k).min())
    require(bool(least > 0), "a token's K-th and (K+1)-th shifted scores are equal")
