"""Evidence for the deterministic statements: runs on fixed scores, and their steps.

A `FixedScoresRun` is a row of `UpdateStep`s on the same scores. It comes from

    a problem    run through the paper's loop here (`run_loop`), in float64
    a Trace      each batch whose scores were kept whole is a run of one step: between the shift
                 before its update and the shift after it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from equipoise.optimum.arrays import Bools, Floats
from equipoise.optimum.loop import (
    FixedScores,
    LoopPath,
    UpdateRule,
    choose_top_k,
    deepseek_rule,
    iterate,
)
from equipoise.theorems.evidence.steps import UpdateStep
from equipoise.theorems.registry import EvidenceKind, Setting
from equipoise.trace import Record, Trace


@dataclass(frozen=True)
class FixedScoresRun:
    """Steps on the same scores. `path.loads` are the recorded ones, a row more than the steps."""

    scores: Floats
    top_k: int
    target: Floats
    path: LoopPath
    step_sizes: Floats
    first: int = 0
    """number of its first step"""
    rounding: float = 1e-15
    kind: type[np.floating] = np.float64
    """what the choice was made in: a router adds in float32"""
    layer: str = ""

    @property
    def number(self) -> int:
        return self.first

    def __len__(self) -> int:
        return len(self.step_sizes)

    def __iter__(self) -> Iterator[UpdateStep]:
        # A run of one step is asked by many statements: keep its step, and what it has computed.
        return iter(self._only_step) if len(self) == 1 else self._walk()

    @cached_property
    def _only_step(self) -> list[UpdateStep]:
        return list(self._walk())

    def _walk(self) -> Iterator[UpdateStep]:
        after = self._choice(0)
        for n in range(len(self)):
            before, after = after, self._choice(n + 1)
            yield UpdateStep(
                number=self.first + n,
                scores=self.scores,
                top_k=self.top_k,
                target=self.target,
                shift=self.path.shifts[n],
                shift_after=self.path.shifts[n + 1],
                loads=self.path.loads[n],
                step_size=self.step_sizes[n],
                before=before,
                after=after,
                loads_after=self.path.loads[n + 1],
                rounding=self.rounding,
                layer=self.layer,
            )

    def _choice(self, n: int) -> Bools:
        return choose_top_k((self.scores + self.path.shifts[n]).astype(self.kind), self.top_k)


class HasScores(Protocol):
    """A problem: FixedScores, or optimum's Problem."""

    @property
    def scores(self) -> Any: ...

    @property
    def top_k(self) -> int: ...


FixedSource = HasScores | FixedScoresRun | Trace | Iterable[FixedScoresRun] | Iterable[UpdateStep]


def run_loop(
    problem: FixedScores, rule: UpdateRule, steps: int, *, shift: Floats | None = None
) -> FixedScoresRun:
    """The paper's loop on a problem."""
    path = iterate(problem, rule, steps, shift=shift)
    T, E = problem.scores.shape
    target = np.full(E, problem.top_k * T / E)
    gap = target - path.loads[:-1]
    moved = np.array([rule(n + 1, each) for n, each in enumerate(gap)]).reshape(steps, E)
    sizes = np.divide(moved, gap, out=np.zeros_like(moved), where=gap != 0)
    rounding = float(4 * np.finfo(np.float64).eps * (1 + np.abs(path.shifts).max()))
    scores = np.asarray(problem.scores, np.float64)
    return FixedScoresRun(scores, problem.top_k, target, path, sizes, rounding=rounding)


def run_of_record(record: Record, trace: Trace, layer: str = "") -> FixedScoresRun:
    """A training's step on a batch that was kept whole, as a run of one step on fixed scores."""
    scores = record.scores.astype(np.float64)
    weights = np.ones(scores.shape[1]) if trace.target is None else np.array(trace.target)
    target = trace.top_k * len(scores) * weights / weights.sum()
    per_token = {"counts": 1.0, "tokens": 1 / len(scores), "relative": 1 / target}[record.unit]
    shifts = np.stack([record.shift, record.shift_after]).astype(np.float64)
    # a router adds in float32, so it chooses in float32
    kind = np.result_type(record.scores, record.shift).type
    after = choose_top_k((scores + shifts[1]).astype(kind), trace.top_k)
    loads = np.stack([record.loads, after.sum(0)])
    size = np.abs(shifts).max() + np.abs(scores).max() + np.ptp(shifts, axis=0).max()
    return FixedScoresRun(
        scores,
        trace.top_k,
        target,
        LoopPath(shifts, loads),
        step_sizes=(record.step_size * per_token)[None],
        first=record.step,
        rounding=4 * float(np.finfo(kind).eps * size),
        kind=kind,
        layer=layer,
    )


def runs_of(source: FixedSource) -> Iterator[FixedScoresRun]:
    """The runs in a source. A bare problem runs 200 steps of DeepSeek's rule with u = 1e-3."""
    if isinstance(source, FixedScoresRun):
        yield source
    elif isinstance(source, Trace):
        for layer in range(len(source.layers)):
            for step in source.whole_steps(layer):
                yield run_of_record(source.record(layer, step), source, source.layers[layer])
    elif not isinstance(source, Iterable) or isinstance(source, FixedScores):
        problem = FixedScores(np.asarray(source.scores, np.float64), source.top_k)
        yield run_loop(problem, deepseek_rule(1e-3), 200)
    else:
        for piece in source:
            if not isinstance(piece, FixedScoresRun):
                raise TypeError(
                    f"this statement needs runs on fixed scores, not a {type(piece).__name__}"
                )
            yield piece


def steps_of(source: FixedSource) -> Iterator[UpdateStep]:
    """The steps in a source."""
    whole = isinstance(source, FixedScoresRun | FixedScores) or not isinstance(source, Iterable)
    for piece in runs_of(source) if whole else source:  # type: ignore[union-attr]
        if isinstance(piece, FixedScoresRun):
            yield from piece
        else:
            yield piece


STEPS = EvidenceKind(Setting.FIXED_SCORES, steps_of)
"""for statements about one update"""
RUNS = EvidenceKind(Setting.FIXED_SCORES, runs_of)
"""for statements about a path of updates"""
