"""Cells: one rule at one rate on one stream, and what it achieved.

A cell is replayed: every batch is routed with the shift as it is, then the rule learns from it. The
scores do not react, as those of a router in training would. What can be compared all the same is
how fast and how closely rules follow the same scores.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.arena.reference import StreamReference, affinity_origin
from equipoise.arena.streams.stream import Batch, Stream
from equipoise.balancing import Balancer, method_spec, resolve_balancer
from equipoise.optimum.hindsight import Regret, dual_at_shift
from equipoise.results.arena import CAPACITY_FACTOR, CellResult, DivergedCell
from equipoise.routing import (
    Routing,
    churn,
    dropped_share,
    idle_share,
    load_metrics,
    metrics,
    sequence_loads,
)
from equipoise.storage.renamed import old_names

CELL_FORMAT = 2
"""raise it when the same cell would give other figures than before"""

__getattr__ = old_names(
    __name__,
    {
        "run": "run_cells",
        "refer": "equipoise.arena.reference:reference_for",
        "Reference": "equipoise.arena.reference:StreamReference",
        "Result": "equipoise.results.arena:CellResult",
    },
)


@dataclass(frozen=True)
class Cell:
    """What is replayed: a balancer by name, at a rate, on a stream."""

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
            [
                CELL_FORMAT,
                self.stream.identity,
                self.balancer,
                self.rate,
                self.devices,
                self.tally_every,
            ]
        )
        rate = "" if self.rate is None else f"{self.rate:g}-"
        return f"{self.balancer}-{rate}{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def make_balancer(self) -> Balancer:
        """A new balancer for it; a wrong name or rate is reported here."""
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
        if "devices" in spec.options:
            # those that its idle share is of
            options["devices"] = self.devices
        if spec.within_sequences:
            options["sequence_length"] = self._sequence_length()
        return resolve_balancer(self.balancer, stream.num_experts, stream.top_k, options)

    def _sequence_length(self) -> int:
        """Of the stream's sequences, for a rule that follows them."""
        block = self.stream.block
        if block is None or self.stream.num_tokens % block:
            raise ValueError(
                f"{self.balancer} follows sequences, and {self.stream.name} has none of one "
                "length: leave it out of --balancers, or choose the stream sequences"
            )
        if self.tally_every > 1:
            raise ValueError(
                f"{self.balancer} must see every token of a sequence: leave out --tally-every"
            )
        return block


def run_cells(
    cells: list[Cell], reference: StreamReference, on_step: Callable[[], None] = lambda: None
) -> Iterator[CellResult | DivergedCell]:
    """Cells of one stream, side by side, so that its batches are made once. One that diverges is
    left behind, and the others continue.
    """
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
        self.cell, self.reference, self.rule = cell, reference, cell.make_balancer()
        self.imbalance: list[float] = []
        self.max_violation: list[float] = []
        self.loads: list[Tensor] = []
        self.sequence_violation: list[float] = []
        self.kept: list[float] = []
        self.switched: list[float] = []
        self.duals: list[float] = []
        spec = method_spec(cell.balancer)
        # the dual is a function of a shift alone
        by_shift = spec.kind == "shift" and not spec.within_sequences
        self.has_regret = bool(reference.own_duals) and by_shift
        self.diverged_after: int | None = None
        """steps, once the shift is not finite"""

    def take_step(self, step: int, batch: Batch) -> None:
        """Route the batch, note the figures, then learn from it; nothing once it has diverged."""
        if self.diverged_after is not None:
            return
        routing = self._route(batch)
        levels = metrics(routing.loads, target=self.cell.stream.target)
        self.imbalance.append(float(levels["imbalance"]))
        self.max_violation.append(float(levels["max_violation"]))
        self.loads.append(routing.loads)
        if self.cell.stream.block is not None:
            self.sequence_violation.append(_sequence_violation(self.cell.stream, routing))
        if self.has_regret and str(step) in self.reference.own_duals:
            self.duals.append(self._dual(batch))
        self._learn(batch, routing)
        if not bool(self.rule.shift_or_zeros.isfinite().all()):
            self.diverged_after = step + 1
            return
        if str(step) in self.reference.optimum:
            optimum = self.reference.optimum[str(step)]
            # an optimum of 0: all scores are alike
            kept = _chosen_affinity(batch, routing) / optimum if optimum else 1.0
            self.kept.append(kept)
            after = self._route(batch).experts
            self.switched.append(float(churn(routing.experts, after, mask=batch.mask)))

    def _route(self, batch: Batch) -> Routing:
        return self.rule.route(batch.scores, groups=self.cell.stream.groups, mask=batch.mask)

    def _dual(self, batch: Batch) -> float:
        """f_n(p^n) of the batch, before the rule learns from it."""
        stream, shift = self.cell.stream, self.rule.shift_or_zeros.numpy()
        return dual_at_shift(batch.tokens.numpy(), stream.top_k, shift, target=stream.target)

    def _regret(self) -> Regret | None:
        hindsight = self.reference.hindsight
        return hindsight.regret_of(self.duals) if self.has_regret and hindsight else None

    def _learn(self, batch: Batch, routing: Routing) -> None:
        every = self.cell.tally_every
        if every > 1:
            batch = Batch(
                batch.scores[::every], None if batch.mask is None else batch.mask[::every]
            )
            routing = self._route(batch)
        self.rule.update(self.rule.tally(batch.scores, routing))

    def result(self) -> CellResult | DivergedCell:
        cell, steady = self.cell, slice(-max(1, len(self.imbalance) // 3), None)
        if self.diverged_after is not None:
            return DivergedCell(cell.stream.name, cell.balancer, cell.rate, self.diverged_after)
        level, floor = float(np.mean(self.imbalance[steady])), self.reference.floor
        regret = self._regret()
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
            regret=None if regret is None else regret.fixed_share,
            dynamic_regret=None if regret is None else regret.dynamic_share,
            path_length=None if regret is None else regret.path_length,
            dropped_share=float(dropped_share(torch.stack(self.loads[steady]), CAPACITY_FACTOR)),
            sequence_violation=(
                float(np.mean(self.sequence_violation[steady])) if self.sequence_violation else None
            ),
        )


def _chosen_affinity(batch: Batch, routing: Routing) -> float:
    """Sum of the chosen scores. Expert choice leaves some choices empty, marked by the number E."""
    experts = batch.scores.shape[1]
    taken = batch.scores.gather(1, routing.experts.clamp_max(experts - 1)).double()
    taken = (taken - affinity_origin(batch)) * (routing.experts < experts)
    return float((taken if batch.mask is None else taken[~batch.mask]).sum())


def _sequence_violation(stream: Stream, routing: Routing) -> float:
    """Max violation within single sequences, mean over those with tokens."""
    length = stream.block or stream.num_tokens
    loads = sequence_loads(routing.experts, stream.num_experts, length, mask=routing.mask)
    loads = loads[loads.sum(1) > 0]
    return float(load_metrics(loads, stream.target)["max_violation"].mean())
