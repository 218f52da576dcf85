"""ChoosingLayer: what a layer that chooses by a balancer has in common with others, and where
somebody else's experts enter it.

A replay puts other experts in the place of the chosen ones. What is counted then is another matter:
the shift had no part in that choice, so by default nothing is. Hence a choice is two routings: the
one that is taken, and the one that is counted.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from equipoise.balancing import Balancer
from equipoise.balancing.shift.in_sequences import route_and_tally
from equipoise.routing import Groups, Routing, Tally
from equipoise.routing.kernels.reference import count_loads
from equipoise.routing.route import gather_gates


class Choice(NamedTuple):
    """What a layer takes, and what it counts."""

    taken: Routing
    counted: Routing | None
    """what the balancer itself chose; None where nothing is to be counted"""
    ranked: Tensor
    """(..., E) the scores that the balancer chose by"""


class ExpertExchange(Protocol):
    """What may stand between a layer's choice and the experts it takes (attach/replay)."""

    def exchange(
        self,
        layer: ChoosingLayer,
        scores: Tensor,
        ranked: Tensor,
        own: Routing,
        sequences: Tensor | None = None,
    ) -> Choice:
        """What the layer takes and counts, where its balancer chooses `own` by `ranked` (..., E),
        and gates come from `scores`; `sequences` (...) names each token's sequence.
        """

    def forget_forwards(self) -> None:
        """No forward that was run will be recomputed."""


class ChoosingLayer(nn.Module):
    """A module that chooses experts by its balancer: a Router, or a LayerBalancer."""

    balancer: Balancer
    groups: Groups | tuple[int, int] | None
    renormalize: bool
    scale: float
    exchange: ExpertExchange | None = None
    """set where experts were recorded or replayed; a copy has none"""
    _empty: Tally | None = None

    def route_live(
        self, scores: Tensor, mask: Tensor | None, sequences: Tensor | None = None
    ) -> Routing:
        """The balancer's own choice."""
        route, _ = route_and_tally(self.balancer, sequences)
        return route(
            scores, groups=self.groups, mask=mask, renormalize=self.renormalize, scale=self.scale
        )

    def choose(
        self,
        scores: Tensor,
        mask: Tensor | None,
        older: Tensor | None = None,
        sequences: Tensor | None = None,
    ) -> Choice:
        """The choice by (..., E) scores, or by `older` ones, or what is given in its place."""
        ranked = scores if older is None else older
        own = self.route_live(ranked, mask, sequences)
        if self.exchange is not None:
            return self.exchange.exchange(self, scores, ranked, own, sequences)
        taken = own if older is None else self.take_experts(scores, own, own.experts)
        return Choice(taken, own, ranked)

    def take_experts(self, scores: Tensor, own: Routing, experts: Tensor) -> Routing:
        """The routing to (T, K) experts, with gates from the layer's own scores."""
        gates = gather_gates(
            scores.flatten(0, -2),
            experts,
            renormalize=self.renormalize,
            scale=self.scale,
            may_be_empty=not self.balancer.takes_top_k,
        )
        # one more, for the empty places of a token that experts choose
        loads = count_loads(experts, self.balancer.num_experts + 1, own.mask)[:-1]
        # runner-up, margin and groups are of a choice that was not made
        return Routing(experts, gates, loads, None, None, own.mask, None, None)

    def count_choice(self, choice: Choice, sequences: Tensor | None = None) -> Tally:
        """Its tally: of no tokens and no forward where nothing is to be counted."""
        if choice.counted is not None:
            _, tally = route_and_tally(self.balancer, sequences)
            return tally(choice.ranked, choice.counted)
        return dataclasses.replace(self._no_tokens(), step=self.balancer.steps.clone())

    def _no_tokens(self) -> Tally:
        """A tally of no tokens and no forward, but for its step: made once, since it is all 0."""
        device = self.balancer.steps.device
        if self._empty is None or self._empty.loads.device != device:
            empty = self.balancer.empty_tally()
            self._empty = dataclasses.replace(empty, forwards=empty.forwards[:0])
        return self._empty

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a pickled layer, routes live."""
        left_out = ("exchange", "_empty")
        return {name: value for name, value in vars(self).items() if name not in left_out}
