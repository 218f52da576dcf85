"""The exchanges of the routers that `balance` is attached to."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.replay.anticipation import Anticipation, check_anticipates
from equipoise.attach.replay.choice_exchange import ChoiceExchange
from equipoise.layers.weight_history import check_look_back


def exchanges_of(routers: Sequence[BalancedRouter]) -> list[ChoiceExchange]:
    """Of every router, made where they are first needed."""
    return [_exchange_of(router) for router in routers]


def forget_forwards(routers: Sequence[BalancedRouter]) -> None:
    """A step was taken: the forwards before it will not be recomputed."""
    for router in routers:
        if router.exchange is not None:
            router.exchange.forget_forwards()


def anticipate_choices(routers: Sequence[BalancedRouter], steps: int) -> None:
    """Let every router choose by its weights of `steps` steps ago; of 0 steps ago, as ever."""
    check_look_back(steps)
    check_anticipates([router.found for router in routers])
    for router, exchange in zip(routers, exchanges_of(routers)):
        exchange.anticipation = Anticipation(router.found, steps) if steps else None


def advance_anticipations(routers: Sequence[BalancedRouter]) -> None:
    """A step was taken: the routers' weights are kept."""
    for router in routers:
        if router.exchange is not None and router.exchange.anticipation is not None:
            router.exchange.anticipation.advance()


def _exchange_of(router: BalancedRouter) -> ChoiceExchange:
    if router.exchange is None:
        exchange = ChoiceExchange(router.name, router.found.spec, router.context)
        if router.found.bias is None:
            exchange.shift = lambda: router.applied_shift
        else:
            exchange.bias = lambda: router.applied_shift
        router.watch_choice(exchange)
    assert router.exchange is not None
    return router.exchange
