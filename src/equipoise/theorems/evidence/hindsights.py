"""Evidence on regret that really happened: the batches of a layer that were kept whole, the shifts
they were routed by, and both comparators (optimum/hindsight.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.optimum.arrays import Floats, Ints
from equipoise.optimum.hindsight import (
    Hindsight,
    Regret,
    dual_at_shift,
    loads_priced_at,
    look_back,
    thin_evenly,
    wanted_loads,
)
from equipoise.optimum.problem import Problem
from equipoise.theorems.evidence.runs import FixedScoresRun
from equipoise.theorems.registry import EvidenceKind, Setting
from equipoise.trace import Trace

MOST_BATCHES = 8
"""of a layer: each is solved"""


@dataclass(frozen=True)
class LayerHindsight:
    """One layer's batches, in the order of the training."""

    top_k: int
    target: tuple[float, ...] | None
    """weights"""
    scores: tuple[Floats, ...]
    """(T, E) each"""
    shifts: tuple[Floats, ...]
    """(E) each, that the batch was routed by"""
    loads: tuple[Ints, ...]
    """(E) each, as recorded"""
    rounding: float
    """how far a recorded shift may be from the real number that was meant"""
    number: int = 0
    layer: str = ""

    @cached_property
    def found(self) -> Hindsight:
        return look_back(self.scores, self.top_k, target=self.target)

    @cached_property
    def regret(self) -> Regret:
        batches = zip(self.scores, self.shifts)
        duals = [dual_at_shift(s, self.top_k, p, target=self.target) for s, p in batches]
        return self.found.regret_of(duals)

    @cached_property
    def gaps(self) -> list[Floats]:
        """A - L of each batch, L the whole loads at which its dual is least."""
        found = []
        for scores, shift, loads in zip(self.scores, self.shifts, self.loads):
            wanted = wanted_loads(self.target, len(scores), self.top_k)
            problem = Problem.of(scores, self.top_k, wanted)
            found.append((loads - loads_priced_at(problem, shift)).astype(np.float64))
        return found


HindsightSource = LayerHindsight | Trace | FixedScoresRun | Iterable[FixedScoresRun]


def hindsights_of(source: HindsightSource) -> Iterator[LayerHindsight]:
    """The layers of a trace that kept batches whole, or runs on fixed scores."""
    if isinstance(source, LayerHindsight):
        yield source
    elif isinstance(source, Trace):
        for layer in range(len(source.layers)):
            if (found := _hindsight_of_layer(source, layer)) is not None:
                yield found
    else:
        for run in [source] if isinstance(source, FixedScoresRun) else source:
            yield _hindsight_of_run(run)


def _hindsight_of_layer(trace: Trace, layer: int) -> LayerHindsight | None:
    """None where no whole batch has finite numbers: verify tells of that by itself."""
    steps = thin_evenly(trace.whole_steps(layer), MOST_BATCHES)
    records = [trace.record(layer, step) for step in steps]
    records = [
        each for each in records if np.isfinite(each.scores).all() and np.isfinite(each.shift).all()
    ]
    if not records:
        return None
    size = max(float(np.abs(each.shift).max() + np.abs(each.scores).max()) for each in records)
    return LayerHindsight(
        trace.top_k,
        None if trace.target is None else tuple(trace.target),
        tuple(each.scores.astype(np.float64) for each in records),
        tuple(each.shift.astype(np.float64) for each in records),
        tuple(each.loads for each in records),
        rounding=4 * float(np.finfo(records[0].shift.dtype).eps) * size,
        number=records[-1].step,
        layer=trace.layers[layer],
    )


def _hindsight_of_run(run: FixedScoresRun) -> LayerHindsight:
    """The same scores at every step: both comparators are their optimum."""
    steps = list(thin_evenly(range(len(run)), MOST_BATCHES))
    return LayerHindsight(
        run.top_k,
        None,
        tuple(run.scores for _ in steps),
        tuple(run.path.shifts[n] for n in steps),
        tuple(run.path.loads[n] for n in steps),
        rounding=run.rounding,
        number=run.first + steps[-1],
        layer=run.layer,
    )


HINDSIGHTS = EvidenceKind(Setting.WHOLE_TRAININGS, hindsights_of)
"""for statements about the regret of what happened"""
