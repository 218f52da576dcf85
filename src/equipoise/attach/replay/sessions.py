"""Record what all routers of a model choose, or give them experts, for the length of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.find.quirks import routes_pictures
from equipoise.attach.replay.choice_exchange import ChoiceExchange
from equipoise.attach.replay.even_loads import EvenLoads
from equipoise.attach.replay.expert_choices import ExpertChoices
from equipoise.attach.replay.given_experts import GivenExperts, RouterShape, read_given
from equipoise.attach.replay.given_rows import GivenRows, Share
from equipoise.attach.replay.score_floor import check_floor

TALLIES = ("none", "own")


class ReplayReport:
    """How much of a replay was replayed."""

    def __init__(self, given: Mapping[str, GivenRows]) -> None:
        self._given = given

    @property
    def live_share_by_layer(self) -> dict[str, float]:
        """The share of tokens, without padding, that a router chose for itself (-1)."""
        return {name: float(rows.live_share) for name, rows in self._given.items()}

    @property
    def live_share(self) -> float:
        """The same over all layers together."""
        return float(sum((rows.live_share for rows in self._given.values()), Share(0, 0)))

    @property
    def refused_share_by_layer(self) -> dict[str, float]:
        """The share of given choices, without padding and -1, that were below the floor: there a
        router chose for itself, too.
        """
        return {name: float(rows.refused_share) for name, rows in self._given.items()}

    @property
    def refused_share(self) -> float:
        """The same over all layers together."""
        return float(sum((rows.refused_share for rows in self._given.values()), Share(0, 0)))


@contextlib.contextmanager
def recorded_experts(routers: Sequence[BalancedRouter], margins: bool) -> Iterator[ExpertChoices]:
    """Within the block, keep what every router takes; recomputations are no forwards."""
    recording = ExpertChoices()
    exchanges = [_exchange_of(router) for router in routers]
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
    routers: Sequence[BalancedRouter], experts: GivenExperts | EvenLoads, tally: str, floor: float
) -> Iterator[ReplayReport]:
    """Within the block, let every router take the experts that are given."""
    if tally not in TALLIES:
        raise ValueError(f"tally is one of {', '.join(map(repr, TALLIES))}, not {tally!r}")
    floor = check_floor(floor)
    given = _rows_by_router(routers, experts)
    exchanges = [_exchange_of(router) for router in routers]
    if any(exchange.given is not None for exchange in exchanges):
        raise RuntimeError("experts are being replayed already: end that block first")
    try:
        for exchange in exchanges:
            exchange.given, exchange.tally_own = given[exchange.name], tally == "own"
            exchange.floor = floor
            exchange.has_replayed = exchange.context.replays = True
        yield ReplayReport(given)
    finally:
        for exchange in exchanges:
            exchange.given, exchange.context.replays = None, False
    _check_all_taken(given)


def _rows_by_router(
    routers: Sequence[BalancedRouter], experts: GivenExperts | EvenLoads
) -> dict[str, GivenRows]:
    shapes = [_shape_of(router) for router in routers]
    if isinstance(experts, EvenLoads):
        return {shape.name: experts.rows_of(shape) for shape in shapes}
    return {name: GivenRows(rows) for name, rows in read_given(experts, shapes).items()}


def _check_all_taken(given: Mapping[str, GivenRows]) -> None:
    """Experts that were never asked for belong to other tokens, or to another model."""
    for name, rows in given.items():
        if rows.taken < len(rows.rows):
            raise RuntimeError(
                f"{name} was given experts of {len(rows.rows)} tokens and routed {rows.taken}: "
                "give those of the forwards in the block, in their order"
            )


def forget_forwards(routers: Sequence[BalancedRouter]) -> None:
    """A step was taken: the forwards before it will not be recomputed."""
    for router in routers:
        if router.exchange is not None:
            router.exchange.forget_forwards()


def _shape_of(router: BalancedRouter) -> RouterShape:
    spec = router.found.spec
    return RouterShape(router.name, spec.num_experts, spec.top_k, routes_pictures(router.name))


def _exchange_of(router: BalancedRouter) -> ChoiceExchange:
    """The router's, made when it is first needed."""
    if router.exchange is None:
        spec = router.found.spec
        exchange = ChoiceExchange(router.name, spec, router.context)
        if router.found.bias is None:
            exchange.shift = lambda: router.applied_shift
        else:
            exchange.bias = lambda: router.applied_shift
        router.watch_choice(exchange)
    assert router.exchange is not None
    return router.exchange
