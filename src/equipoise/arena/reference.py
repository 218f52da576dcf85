"""The reference of a stream: what its cells are compared with, and no cell depends on.

It has the floor, and for the last few batches the exact optimum (equipoise.optimum). From the
optimum follow the affinity that a cell keeps, and the lag-one limit: the imbalance under the exact
optimum of the batch before. For regret it has the duals of the best shift that stays, and of each
batch's own optimum (equipoise.optimum.hindsight).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.arena.floor import imbalance_floor
from equipoise.arena.streams.stream import Batch, Stream
from equipoise.optimum import solve
from equipoise.optimum.hindsight import Hindsight, judged_steps, look_back, wanted_loads
from equipoise.routing import metrics
from equipoise.routing.kernels.operators import best_experts


@dataclass(frozen=True)
class StreamReference:
    """A stream's floor, and the optimum of its last batches."""

    floor: float
    optimum: dict[str, float] = field(default_factory=dict)
    """step -> the greatest sum of scores with exact loads; the solver knows no groups, so that it
    is a bound there
    """
    lag_one: float | None = None
    """mean imbalance under the optimum of the batch before; None with groups, where no solver is
    exact
    """
    fixed_duals: dict[str, float] = field(default_factory=dict)
    """step -> the dual under the best shift that stays; empty with groups"""
    own_duals: dict[str, float] = field(default_factory=dict)
    """step -> the dual under the batch's own optimum"""
    path_length: float = 0.0
    """of the batches' own optima"""

    @property
    def hindsight(self) -> Hindsight | None:
        """What regret is measured against; None with groups."""
        if not self.own_duals:
            return None
        fixed, own = tuple(self.fixed_duals.values()), tuple(self.own_duals.values())
        return Hindsight(fixed, own, self.path_length, best_fixed=np.zeros(0))


def reference_for(stream: Stream) -> StreamReference:
    """The floor, and the optimum of as many of the last batches as can be solved in seconds."""
    steps = range(max(0, stream.steps - _batches_to_solve(stream)), stream.steps)
    optimum, lags, shift = {}, [], None
    for step in steps:
        batch = stream.batch(step)
        if shift is not None and stream.groups is None:
            loads = _loads_of_shift(shift, stream, batch)
            lags.append(float(metrics(loads, target=stream.target)["imbalance"]))
        tokens = batch.tokens.numpy()
        solution = solve(
            tokens,
            stream.top_k,
            target=wanted_loads(stream.target, len(tokens), stream.top_k),
            shift=shift,
        )
        shift = solution.shift
        chosen = len(tokens) * stream.top_k
        optimum[str(step)] = solution.value - affinity_origin(batch) * chosen
    lag_one = float(np.mean(lags)) if lags else None
    return StreamReference(imbalance_floor(stream), optimum, lag_one, **_duals_in_hindsight(stream))


def _duals_in_hindsight(stream: Stream) -> dict[str, Any]:
    """What regret needs, by the names of StreamReference; nothing with groups."""
    if stream.groups is not None:
        return {}
    steps = judged_steps(range(stream.steps), stream.num_tokens, stream.num_experts)
    batches = [stream.batch(step).tokens.numpy() for step in steps]
    found = look_back(batches, stream.top_k, target=stream.target)
    names = [str(step) for step in steps]
    return {
        "fixed_duals": dict(zip(names, found.fixed_duals)),
        "own_duals": dict(zip(names, found.own_duals)),
        "path_length": found.path_length,
    }


def _batches_to_solve(stream: Stream) -> int:
    """How many batches are solved: exact optima of many experts take seconds each, and two are the
    least for a lag of one.
    """
    return 8 if stream.num_experts <= 128 else 3 if stream.num_experts <= 512 else 2


def _loads_of_shift(shift: np.ndarray, stream: Stream, batch: Batch) -> Tensor:
    chosen = best_experts(batch.tokens + torch.from_numpy(shift).float(), stream.top_k)
    return torch.bincount(chosen.flatten(), minlength=stream.num_experts)


def affinity_origin(batch: Batch) -> float:
    """What scores are measured from: 0, or the batch's least score where a router ranks bare
    logits, since a share of a negative sum means nothing.
    """
    return min(0.0, float(batch.tokens.min()))
