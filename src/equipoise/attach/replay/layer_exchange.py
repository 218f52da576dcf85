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
from equipoise.balancing.shift.in_sequences import adjust_scores
from equipoise.layers.choosing_layer import Choice, ChoosingLayer
from equipoise.routing import Routing


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
        self._seen_updates = layer.balancer.updates_made
        self._warned_of_rest = False

    def forget_forwards(self) -> None:
        self.choices.forget_forwards()

    # its host memory and its waits have no place in a compiled graph
    @eager
    def exchange(
        self,
        layer: ChoosingLayer,
        scores: Tensor,
        ranked: Tensor,
        own: Routing,
        sequences: Tensor | None = None,
    ) -> Choice:
        self._notice_update(layer)
        choices = self.choices
        older = ranked is not scores
        live = Choice(layer.take_experts(scores, own, own.experts) if older else own, own, ranked)
        if not choices.active:
            return live
        self._check_size(own)
        self.context.padding, self.context.training = own.mask, layer.training
        choices.begin_run()
        flat, by = scores.detach().flatten(0, -2), ranked.detach().flatten(0, -2)
        if choices.with_margins:
            by = _ranked_scores(layer, ranked.detach(), own, sequences)
        experts = choices.settle(own.experts, by, flat)
        choices.finish_run()
        if choices.replayed is None:
            return live
        taken = layer.take_experts(scores, own, experts)
        if choices.replayed.tally_own:
            return Choice(taken, own, ranked)
        self._warn_of_rest()
        return Choice(taken, None, ranked)

    def _notice_update(self, layer: ChoosingLayer) -> None:
        """The balancer moved since the last forward: those before it are not recomputed."""
        if self._seen_updates != layer.balancer.updates_made:
            self._seen_updates = layer.balancer.updates_made
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


def _ranked_scores(
    layer: ChoosingLayer, scores: Tensor, own: Routing, sequences: Tensor | None
) -> Tensor:
    """(T, E) what the balancer chose by scores (..., E): -inf in groups that were not open."""
    mask = None if own.mask is None else own.mask.view(scores.shape[:-1])
    ranked = adjust_scores(layer.balancer, scores, mask, sequences).flatten(0, -2)
    if own.allowed is None:
        return ranked
    size = ranked.shape[1] // own.allowed.shape[1]
    return ranked.masked_fill(~own.allowed.repeat_interleave(size, 1), -torch.inf)
