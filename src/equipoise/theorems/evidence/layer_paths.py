"""Evidence over a whole training: the shifts of a layer at every recorded step, and the batches of
it that were kept whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from equipoise.optimum.arrays import Floats
from equipoise.theorems.evidence.runs import FixedScoresRun
from equipoise.theorems.registry import EvidenceKind, Setting
from equipoise.trace import Trace


@dataclass(frozen=True)
class LayerPath:
    """One layer over a training."""

    top_k: int
    shifts: Floats
    """(N, E) after every update"""
    batches: tuple[Floats, ...]
    """(T, E) scores each, of steps far apart"""
    batch_steps: tuple[int, ...]
    number: int = 0
    layer: str = ""


PathSource = LayerPath | Trace | FixedScoresRun | Iterable[LayerPath | FixedScoresRun]


def layer_paths_of(source: PathSource) -> Iterator[LayerPath]:
    """The layers of a trace, or runs on fixed scores: those have one batch."""
    if isinstance(source, LayerPath):
        yield source
    elif isinstance(source, Trace):
        for layer, name in enumerate(source.layers):
            if source.steps(layer):
                yield path_of_layer(source, layer, name)
    else:
        runs = [source] if isinstance(source, FixedScoresRun) else source
        for run in runs:
            if isinstance(run, FixedScoresRun):
                shifts, top_k = run.path.shifts, run.top_k
                # the same scores at every step
                yield LayerPath(top_k, shifts, (run.scores, run.scores), (0, len(run)))
            else:
                yield run


def path_of_layer(trace: Trace, layer: int, name: str) -> LayerPath:
    """A layer of a trace, with its first and its last whole batch."""
    shifts = np.stack([record.shift_after for record in trace.updates(layer)]).astype(np.float64)
    whole = trace.whole_steps(layer)
    ends = tuple(dict.fromkeys((whole[0], whole[-1]))) if whole else ()
    batches = tuple(np.asarray(trace.scores(layer, step), np.float64) for step in ends)
    return LayerPath(trace.top_k, shifts, batches, ends, number=trace.steps(layer)[-1], layer=name)


LAYER_PATHS = EvidenceKind(Setting.WHOLE_TRAININGS, layer_paths_of)
"""for assumptions about a training from its first step to its last"""
