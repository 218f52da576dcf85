"""The end of a training: shifts that are frozen, annealed, or settled before the model is saved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from equipoise.attach.count.balanced_router import BalancedRouter


def anneal_routers(routers: Sequence[BalancedRouter], steps: int) -> None:
    """Biases slow down to rest over `steps` steps; shifts that the model cannot hold go to 0."""
    if steps < 1:
        raise ValueError(f"anneal over at least 1 step, not {steps}")
    for router in routers:
        if router.found.bias is None:
            router.anneal_left = steps
            router.balancer.freeze()
        else:
            router.balancer.anneal(steps)


def settle_routers(routers: Sequence[BalancedRouter]) -> None:
    """Give the model its settled shifts."""
    for router in routers:
        router.shift.refresh()
        router.shift.set(router.balancer.settled_shift)


@contextlib.contextmanager
def settled_routers(routers: Sequence[BalancedRouter]) -> Iterator[None]:
    """Give the model its settled shifts inside the block, and the iterates again after it."""
    for router in routers:
        router.shift.refresh()
    iterates = [router.balancer.shift.clone() for router in routers]
    try:
        for router in routers:
            router.shift.set(router.balancer.settled_shift)
        yield
    finally:
        for router, iterate in zip(routers, iterates, strict=True):
            router.shift.set(iterate)
