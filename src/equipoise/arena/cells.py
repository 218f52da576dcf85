"""Cells: one rule at one rate on one stream, and what it achieved.

A cell is replayed: every batch is routed with the shift as it is, then the rule learns from it. The
scores do not react, which a router in training would. What can be compared all the same is how fast
and how closely rules follow the same scores.

Before a stream's cells comes its reference: the floor, and for the last few batches the exact
optimum (equipoise.optimum). From it follow the affinity that a cell keeps, and the lag-one limit,
the imbalance under the exact optimum of the batch before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from equipoise.arena.floor import floor
from equipoise.arena.streams.stream import Batch, Stream
from equipoise.balancing import Balancer, method_spec, resolve_balancer
from equipoise.optimum import solve
from equipoise.results.arena import CellResult
from equipoise.routing import Routing, idle_share, metrics

FORMAT = 2
"""raise it when the same cell would give other figures than before"""


@dataclass(frozen=True)
class Cell:
    stream: Stream
    balancer: str
    rate: float | None = None
    """None for rules that have none"""
    devices: int = 8
    """of the expert-parallel layout that idle_share is of"""
    tally_every: int = 1
    """the rule learns from every n-th token only"""

    @property
    def key(self) -> str:
        """A name for its results: the same only for the same cell."""
        text = json.dumps(
            [FORMAT, self.stream.identity, self.balancer, self.rate, self.devices, self.tally_every]
        )
        rate = "" if self.rate is None else f"{self.rate:g}-"
        return f"{self.balancer}-{rate}{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def make(self) -> Balancer:
        """A new balancer for it; a wrong name or rate is told here."""
        spec, stream = method_spec(self.balancer), self.stream
        if spec.kind == "penalty":
            raise ValueError(
                f"{self.balancer} acts through the loss, and recorded scores do not react: train "
                "to judge it"
            )
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ValueError(f"a rate is a number above 0, not {self.rate:g}")
        if self.rate is not None and self.rate > spec.greatest_rate:
            raise ValueError(
                f"{self.balancer}'s rate is the share of the way it goes, at most 1, not "
                f"{self.rate:g}: leave it out of --balancers"
            )
        options = {"target": stream.target, **spec.options_at(self.rate)}
        return resolve_balancer(self.balancer, stream.num_experts, stream.top_k, options)


@dataclass(frozen=True)
class StreamReference:
    """What no cell depends on: the stream's floor, and the optimum of its last batches."""

    floor: float
    optimum: dict[str, float] = field(default_factory=dict)
    """step -> the greatest sum of scores with exact loads; groups are not obeyed, so that it is a
    bound there
    """
    lag_one: float | None = None
    """mean imbalance under the optimum of the batch before; None with groups, where no solver is
    exact
    """


def reference_for(stream: Stream) -> StreamReference:
    """The floor, and the exact optimum of as many of the last batches as can be solved in seconds."""
    steps = range(max(0, stream.steps - _solved(stream)), stream.steps)
    optimum, lags, shift = {}, [], None
    for step in steps:
        batch = stream.batch(step)
        if shift is not None and stream.groups is None:
            lags.append(float(_levels(stream, _loads(stream, batch, shift))["imbalance"]))
        tokens = batch.tokens.numpy()
        solution = solve(
            tokens, stream.top_k, target=_target_loads(stream, len(tokens)), shift=shift
        )
        shift, optimum[str(step)] = (
            solution.shift,
            solution.value - _least(batch) * len(tokens) * stream.top_k,
        )
    return StreamReference(floor(stream), optimum, float(np.mean(lags)) if lags else None)


def run_cells(
    cells: list[Cell], reference: StreamReference, on_step: Callable[[], None] = lambda: None
) -> Iterator[CellResult]:
    """Cells of one stream, side by side, so that its batches are made once."""
    stream = cells[0].stream
    runs = [_CellRun(cell, reference) for cell in cells]
    for step in range(stream.steps):
        batch = stream.batch(step)
        for each in runs:
            each.take_step(step, batch)
        on_step()
    return (each.result() for each in runs)


class _CellRun:
    """A cell on its way through the stream."""

    def __init__(self, cell: Cell, reference: StreamReference) -> None:
        self.cell, self.reference, self.rule = cell, reference, cell.make()
        self.imbalance: list[float] = []
        self.max_violation: list[float] = []
        self.loads: list[Tensor] = []
        self.kept: list[float] = []
        self.switched: list[float] = []

    def take_step(self, step: int, batch: Batch) -> None:
        routing = self._route(batch)
        levels = _levels(self.cell.stream, routing.loads)
        self.imbalance.append(float(levels["imbalance"]))
        self.max_violation.append(float(levels["max_violation"]))
        self.loads.append(routing.loads)
        self._learn(batch, routing)
        if str(step) in self.reference.optimum:
            optimum = self.reference.optimum[str(step)]
            self.kept.append(
                _value(batch, routing) / optimum if optimum else 1.0
            )  # 0: all scores are alike
            self.switched.append(_switched(batch, routing, self._route(batch)))

    def _route(self, batch: Batch) -> Routing:
        return self.rule.route(batch.scores, groups=self.cell.stream.groups, mask=batch.mask)

    def _learn(self, batch: Batch, routing: Routing) -> None:
        every = self.cell.tally_every
        if every > 1:
            batch = Batch(
                batch.scores[::every], None if batch.mask is None else batch.mask[::every]
            )
            routing = self._route(batch)
        self.rule.update(self.rule.tally(batch.scores, routing))

    def result(self) -> CellResult:
        cell, steady = self.cell, slice(-max(1, len(self.imbalance) // 3), None)
        level, floor = float(np.mean(self.imbalance[steady])), self.reference.floor
        near = (step for step, value in enumerate(self.imbalance) if value <= 2 * floor)
        return CellResult(
            stream=cell.stream.name,
            balancer=cell.balancer,
            rate=cell.rate,
            steady_imbalance=level,
            over_floor=level / floor if floor else None,
            steps_to_floor=next(near, None),
            affinity_kept=float(np.mean(self.kept)),
            switched=float(np.mean(self.switched)),
            idle_share=float(idle_share(torch.stack(self.loads[steady]), cell.devices)),
            steady_max_violation=float(np.mean(self.max_violation[steady])),
            floor=floor,
            lag_one=self.reference.lag_one,
            imbalance=self.imbalance,
            max_violation=self.max_violation,
        )


def _solved(stream: Stream) -> int:
    """How many batches are solved: exact optima of many experts take seconds each, and two are the
    least for a lag of one.
    """
    return 8 if stream.num_experts <= 128 else 3 if stream.num_experts <= 512 else 2


def _target_loads(stream: Stream, tokens: int) -> np.ndarray | None:
    if stream.target is None:
        return None
    weights = np.asarray(stream.target)
    return weights * (tokens * stream.top_k / weights.sum())


def _loads(stream: Stream, batch: Batch, shift: np.ndarray) -> Tensor:
    chosen = (batch.tokens + torch.from_numpy(shift).float()).topk(stream.top_k, dim=1).indices
    return torch.bincount(chosen.flatten(), minlength=stream.num_experts)


def _levels(stream: Stream, loads: Tensor) -> dict[str, Tensor]:
    return metrics(loads, target=stream.target)


def _value(batch: Batch, routing: Routing) -> float:
    """Sum of the chosen scores. Expert choice leaves some choices empty, marked by the number E."""
    experts = batch.scores.shape[1]
    taken = batch.scores.gather(1, routing.experts.clamp_max(experts - 1)).double() - _least(batch)
    taken = taken * (routing.experts < experts)
    return float((taken if batch.mask is None else taken[~batch.mask]).sum())


def _least(batch: Batch) -> float:
    """What scores are measured from: 0, or where a router ranks bare logits the batch's least. A
    share of a negative sum means nothing.
    """
    return min(0.0, float(batch.tokens.min()))


def _switched(batch: Batch, before: Routing, after: Routing) -> float:
    """The share of tokens that go elsewhere, in whatever order they rank their experts."""
    moved = (before.experts.sort(1).values != after.experts.sort(1).values).any(1)
    return float((moved if batch.mask is None else moved[~batch.mask]).float().mean())
