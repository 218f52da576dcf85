"""The reference of a stream: what its cells are compared with, and no cell depends on.

It has the floor, and for the last few batches the exact optimum (equipoise.optimum). From the
optimum follow the affinity that a cell keeps, and the lag-one limit: the imbalance under the exact
optimum of the batch before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from equipoise.arena.floor import imbalance_floor
from equipoise.arena.streams.stream import Batch, Stream
from equipoise.optimum import solve
from equipoise.routing import metrics


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
            tokens, stream.top_k, target=_loads_wanted(stream, len(tokens)), shift=shift
        )
        shift = solution.shift
        chosen = len(tokens) * stream.top_k
        optimum[str(step)] = solution.value - affinity_origin(batch) * chosen
    return StreamReference(imbalance_floor(stream), optimum, float(np.mean(lags)) if lags else None)


def _batches_to_solve(stream: Stream) -> int:
    """How many batches are solved: exact optima of many experts take seconds each, and two are the
    least for a lag of one.
    """
    return 8 if stream.num_experts <= 128 else 3 if stream.num_experts <= 512 else 2


def _loads_wanted(stream: Stream, tokens: int) -> np.ndarray | None:
    if stream.target is None:
        return None
    weights = np.asarray(stream.target)
    return weights * (tokens * stream.top_k / weights.sum())


def _loads_of_shift(shift: np.ndarray, stream: Stream, batch: Batch) -> Tensor:
    chosen = (batch.tokens + torch.from_numpy(shift).float()).topk(stream.top_k, dim=1).indices
    return torch.bincount(chosen.flatten(), minlength=stream.num_experts)


def affinity_origin(batch: Batch) -> float:
    """What scores are measured from: 0, or the batch's least score where a router ranks bare
    logits, since a share of a negative sum means nothing.
    """
    return min(0.0, float(batch.tokens.min()))
