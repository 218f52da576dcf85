"""Record what all routers of a model choose, or give them experts, for the length of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from equipoise.attach.find.quirks import routes_pictures
from equipoise.attach.replay.choice_exchange import ChoiceExchange
from equipoise.attach.replay.expert_choices import ExpertChoices
from equipoise.attach.replay.forced_loads import ForcedLoads
from equipoise.attach.replay.given_experts import GivenExperts, RouterShape, read_given
from equipoise.attach.replay.given_rows import GivenRows
from equipoise.attach.replay.replay_report import ReplayReport
from equipoise.attach.replay.score_floor import check_floor

TALLIES = ("none", "own")


@dataclass(frozen=True)
class ReplayTerms:
    """How experts are taken, and what is counted of it."""

    tally: str = "none"
    """one of TALLIES"""
    floor: float = 0.0
    """see score_floor.py"""

    def check(self) -> None:
        """Refuse what is no tally, and no floor."""
        if self.tally not in TALLIES:
            raise ValueError(f"tally is one of {', '.join(map(repr, TALLIES))}, not {self.tally!r}")
        check_floor(self.floor)


@contextlib.contextmanager
def recorded_experts(exchanges: Sequence[ChoiceExchange], margins: bool) -> Iterator[ExpertChoices]:
    """Within the block, keep what every router takes; recomputations are no forwards."""
    recording = ExpertChoices()
    if any(exchange.recording is not None for exchange in exchanges):
        raise RuntimeError("experts are being recorded already: end that block first")
    try:
        for exchange in exchanges:
            exchange.recording, exchange.with_margins = recording, margins
        yield recording
    finally:
        for exchange in exchanges:
            exchange.recording, exchange.with_margins = None, False


@contextlib.contextmanager
def replayed_experts(
    exchanges: Sequence[ChoiceExchange], experts: GivenExperts | ForcedLoads, terms: ReplayTerms
) -> Iterator[ReplayReport]:
    """Within the block, let every router take the experts that are given."""
    terms.check()
    given = _rows_by_router(exchanges, experts)
    if any(exchange.given is not None for exchange in exchanges):
        raise RuntimeError("experts are being replayed already: end that block first")
    try:
        for exchange in exchanges:
            exchange.given, exchange.tally_own = given[exchange.name], terms.tally == "own"
            exchange.floor = terms.floor
            exchange.has_replayed = exchange.context.replays = True
        yield ReplayReport(given)
    finally:
        for exchange in exchanges:
            exchange.given, exchange.context.replays = None, False
    _check_all_taken(given)


def _rows_by_router(
    exchanges: Sequence[ChoiceExchange], experts: GivenExperts | ForcedLoads
) -> dict[str, GivenRows]:
    shapes = [_shape_of(exchange) for exchange in exchanges]
    if isinstance(experts, ForcedLoads):
        return {shape.name: experts.rows_of(shape) for shape in shapes}
    return {name: GivenRows(rows) for name, rows in read_given(experts, shapes).items()}


def _shape_of(exchange: ChoiceExchange) -> RouterShape:
    name, spec = exchange.name, exchange.spec
    return RouterShape(name, spec.num_experts, spec.top_k, routes_pictures(name))


def _check_all_taken(given: Mapping[str, GivenRows]) -> None:
    """Experts that were never asked for belong to other tokens, or to another model."""
    for name, rows in given.items():
        if rows.taken < len(rows.rows):
            raise RuntimeError(
                f"{name} was given experts of {len(rows.rows)} tokens and routed {rows.taken}: "
                "give those of the forwards in the block, in their order"
            )
