"""What a balanced model's last step says about its layers, for trackers.

Loads are in the balancing already. How many tokens the update has switched needs scores, of which
nothing is kept unless somebody asks: `watch_switches` keeps those of some tokens of the newest
forward, with the shift they were routed by.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from equipoise.attach import Balancing
from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.routing import idle_share
from equipoise.tracking import LayerBalance, switched_share

WATCHED_TOKENS = 256
"""of a forward and router"""
RouterObserver = Callable[[BalancedRouter, Tensor, Tensor | None], None]


def attached_layers(balancing: Balancing, devices: int) -> dict[str, LayerBalance]:
    """Each router's last step. From the first call on, switched tokens are watched too."""
    if not balancing.last_tallies:
        raise RuntimeError(
            "this balancing has made no step yet, so there are no loads to log: log after "
            "balancing.step()"
        )
    watch = watch_switches(balancing)
    return {
        router.name: LayerBalance(
            loads=balancing.last_tallies[router.name].loads,
            top_k=router.balancer.top_k,
            target=router.balancer.target.weights,
            idle_share=idle_share_of(balancing.last_tallies[router.name].forwards, devices),
            switched=watch.measure(router),
        )
        for router in balancing.routers
    }


def idle_share_of(forwards: Tensor, devices: int) -> float | None:
    """Of devices with equal blocks of experts; None where experts do not divide over them."""
    even = devices > 0 and forwards.shape[-1] % devices == 0
    return float(idle_share(forwards.cpu(), devices)) if even else None


class WatchedScores(NamedTuple):
    """Some tokens of a router's newest counted forward."""

    steps: int
    """steps that the balancing had made"""
    scores: Tensor
    shift: Tensor
    """(E,) that they were routed by"""


class SwitchWatch:
    """Keeps scores of some tokens, beside whoever else observes a router (a trace)."""

    def __init__(self, balancing: Balancing) -> None:
        self._balancing = weakref.ref(balancing)
        self._seen: dict[str, WatchedScores] = {}
        self._others: dict[str, RouterObserver | None] = {}
        self.install()

    def install(self) -> None:
        """On every router, also where a trace was begun later and has taken our place."""
        balancing = self._balancing()
        for router in balancing.routers if balancing is not None else ():
            if router.observer != self.keep_scores:
                self._others[router.name] = router.observer
                router.observer = self.keep_scores

    def keep_scores(self, router: BalancedRouter, experts: Tensor, scores: Tensor | None) -> None:
        """Keep some rows of a forward, evenly spread over it, and pass it on."""
        other, balancing = self._others.get(router.name), self._balancing()
        if scores is not None and balancing is not None:
            rows = scores[:: max(1, -(-len(scores) // WATCHED_TOKENS))].clone()
            shift = router.applied_shift.clone()
            self._seen[router.name] = WatchedScores(balancing.steps, rows, shift)
        if other is not None:
            other(router, experts, scores)

    def measure(self, router: BalancedRouter) -> float | None:
        """The share of tokens switched by the last step; None where its forwards were not seen."""
        seen, balancing = self._seen.get(router.name), self._balancing()
        if seen is None or balancing is None or seen.steps != balancing.steps - 1:
            return None
        return switched_share(
            seen.scores,
            router.balancer.top_k,
            seen.shift,
            router.applied_shift,
            groups=router.found.spec.groups,
        )


_WATCHES: weakref.WeakKeyDictionary[Balancing, SwitchWatch] = weakref.WeakKeyDictionary()


def watch_switches(balancing: Balancing) -> SwitchWatch:
    """The watch of this balancing, begun now if there is none."""
    watch = _WATCHES.get(balancing)
    if watch is None:
        watch = _WATCHES[balancing] = SwitchWatch(balancing)
    watch.install()
    return watch
