"""LayerExchange: somebody else's experts in a layer that chooses by an equipoise balancer.

Nothing has to be intercepted there: the layer asks (layers/choosing_layer.py). What is kept for
recomputation goes when the balancer is updated, which is the step of such a layer.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from equipoise.attach.count.forward_context import REPLAY_RESTS, eager
from equipoise.attach.find.routing_spec import RoutingSpec
from equipoise.attach.replay.choice_exchange import ChoiceExchange
from equipoise.layers.choosing_layer import Choice, ChoosingLayer
from equipoise.routing import Routing
from equipoise.routing.kernels.reference import count_loads
from equipoise.routing.route import gather_gates


class LayerContext:
    """What a layer of its own knows of the forward it runs in."""

    def __init__(self) -> None:
        self.replays = False
        self.training = False
        self.padding: Tensor | None = None
        """(T,) bool"""

    def known_padding(self, name: str, num_tokens: int) -> Tensor | None:
        return self.padding

    def may_recompute(self, is_replayed: bool) -> bool:
        # reentrant checkpointing turns gradients off in a forward that trains
        return torch.is_grad_enabled() or self.training


class LayerExchange:
    """What stands between a layer's choice and the experts it takes."""

    def __init__(self, name: str, layer: ChoosingLayer) -> None:
        self.context = LayerContext()
        self.choices = ChoiceExchange(name, _spec_of(layer), self.context)
        self._updates = _updates_of(layer)
        self._warned_of_rest = False

    def forget_forwards(self) -> None:
        self.choices.forget_forwards()

    # its host memory and its waits have no place in a compiled graph
    @eager
    def exchange(self, layer: ChoosingLayer, scores: Tensor, own: Routing) -> Choice:
        self._notice_update(layer)
        choices = self.choices
        if not choices.active:
            return Choice(own, own)
        self._check_size(own)
        self.context.padding, self.context.training = own.mask, layer.training
        choices.begin_run()
        flat = scores.detach().flatten(0, -2)
        ranked = _ranked_scores(layer, flat, own) if choices.with_margins else flat
        taken = choices.settle(own.experts, ranked, flat)
        choices.finish_run()
        if choices.replayed is None:
            return Choice(own, own)
        if choices.replayed.tally_own:
            return Choice(_take_experts(layer, scores, own, taken), own)
        self._warn_of_rest()
        return Choice(_take_experts(layer, scores, own, taken), None)

    def _notice_update(self, layer: ChoosingLayer) -> None:
        """The balancer moved since the last forward: those before it are not recomputed."""
        updates = _updates_of(layer)
        if updates != self._updates:
            self._updates = updates
            self.choices.forget_forwards()

    def _check_size(self, own: Routing) -> None:
        if own.experts.shape[1] != self.choices.spec.top_k:
            raise ValueError(
                f"{self.choices.name}: a token takes {own.experts.shape[1]} places here and not "
                f"{self.choices.spec.top_k} (expert choice, in training): such choices are neither "
                "recorded nor replayed"
            )

    def _warn_of_rest(self) -> None:
        """Say once that a replay leaves the shift where it is."""
        if not self._warned_of_rest:
            self._warned_of_rest = True
            warnings.warn(REPLAY_RESTS.format(call="replay_experts(..."), stacklevel=4)


def _spec_of(layer: ChoosingLayer) -> RoutingSpec:
    # gates are divided by their sum only where no score is negative
    score = getattr(layer, "score", "sigmoid" if layer.renormalize else None)
    return RoutingSpec(
        num_experts=layer.balancer.num_experts,
        top_k=layer.balancer.top_k,
        groups=None,
        group_worth=None,
        fill=None,
        score=score,
        logits_at=None,
        bias=None,
        in_gate=True,
        passed=False,
    )


def _updates_of(layer: ChoosingLayer) -> tuple[int, int]:
    """A mark that changes by every update; its values would make a GPU wait."""
    steps = layer.balancer.steps
    return id(steps), steps._version


def _ranked_scores(layer: ChoosingLayer, scores: Tensor, own: Routing) -> Tensor:
    """(T, E) what the balancer chose by: -inf in groups that were not open."""
    ranked = layer.balancer.adjust(scores)
    if own.allowed is None:
        return ranked
    size = ranked.shape[1] // own.allowed.shape[1]
    return ranked.masked_fill(~own.allowed.repeat_interleave(size, 1), -torch.inf)


def _take_experts(layer: ChoosingLayer, scores: Tensor, own: Routing, experts: Tensor) -> Routing:
    """The routing to these experts, with gates from the layer's own scores."""
    gates = gather_gates(
        scores.flatten(0, -2), experts, renormalize=layer.renormalize, scale=layer.scale
    )
    loads = count_loads(experts, layer.balancer.num_experts, own.mask)
    # runner-up, margin and groups are of a choice that was not made
    return Routing(experts, gates, loads, None, None, own.mask, None, None)
