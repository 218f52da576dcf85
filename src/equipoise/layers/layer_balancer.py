"""LayerBalancer: a balancer that a layer of one's own owns, and that counts by itself.

    self.balancer = equipoise.LayerBalancer("curvature", num_experts, top_k)    # in __init__
    routing = self.balancer(scores)                       # in forward: routing.experts, .gates
    ...
    optimizer.step(); equipoise.step(model)               # every layer of the model, once

A balancer alone is pure: its tallies must be carried out of the layer, added over micro-batches and
ranks, and taken once although checkpointing runs the layer twice. This module keeps the tally
between two steps, of those tokens that were trained on and of no others (trained_counts.py says how
it knows). It is no buffer: DDP would broadcast it, and a cast would round it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.balancing import resolve_balancer
from equipoise.balancing.resolve import BalancerSource
from equipoise.layers.choosing_layer import ChoosingLayer
from equipoise.layers.trained_counts import count_when_trained, register_keeper
from equipoise.routing import Groups, Tally


class LayerRouting(NamedTuple):
    """What a LayerBalancer returns. The leading dimensions are those of the scores."""

    experts: Tensor
    """(..., K) int64: the chosen experts, highest shifted score first"""
    gates: Tensor
    """(..., K): their unshifted scores; carries gradients"""
    penalty: Tensor
    """what to add to the loss: 0 for balancers without a penalty"""
    loads: Tensor
    """(E,) int64: tokens each expert received, padding left out"""


class LayerBalancer(ChoosingLayer):
    """Chooses experts by a balancer, and counts what is trained on.

    Args:
        balancer: a name (`equipoise.balancers()`), a Balancer of this size, or a function
            (num_experts, top_k) -> Balancer.
        num_experts: E.
        top_k: K.
        groups: (number, keep) for group-limited routing.
        renormalize: divide a token's gates by their sum.
        scale: multiply the gates.
        **options: of a balancer by name (`update_rate=1e-3`, `target=[...]`).

    Example:
        >>> layer = LayerBalancer("deepseek", 4, 2)
        >>> routing = layer(torch.rand(3, 5, 4, requires_grad=True))
        >>> routing.experts.shape, routing.gates.shape
        (torch.Size([3, 5, 2]), torch.Size([3, 5, 2]))
        >>> routing.gates.sum().backward()
        >>> layer.counted.loads.sum()
        tensor(30)
    """

    def __init__(
        self,
        balancer: BalancerSource,
        num_experts: int,
        top_k: int,
        *,
        groups: Groups | tuple[int, int] | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
        **options: object,
    ) -> None:
        super().__init__()
        self.balancer = resolve_balancer(balancer, num_experts, top_k, options)
        self.groups, self.renormalize, self.scale = groups, renormalize, scale
        self.ever_counted = False
        """whether it was counted at all: one that never is has something in its way"""
        self._begin()

    def _begin(self) -> None:
        self.counted: Tally | None = None
        """what was trained on since the last step"""
        self.entered = False
        """whether a forward that may be trained on ran since the last step"""
        self._number = register_keeper(self)

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        *,
        logits: Tensor | None = None,
        sequences: Tensor | None = None,
    ) -> LayerRouting:
        """Choose by (..., E) scores and the shift; count once gradients come back.

        Args:
            scores: the affinity of each token to each expert; gates are taken from them.
            mask: (...) bool, True where a token is padding: it is routed, but counted nowhere.
            logits: (..., E) for penalties on logits.
            sequences: (...) each token's sequence, for penalties and balancers that look at
                sequences; by default the first dimension of the scores.
        """
        choice = self.choose(scores, mask, sequences=sequences)
        routing = choice.taken
        penalty = self.balancer.penalty(scores, routing, logits, sequences)
        gates = routing.gates
        if self.training and torch.is_grad_enabled():
            self.entered = True
            tally = self.count_choice(choice, sequences)
            gates = count_when_trained(gates, tally, self, self._number)
        shape = (*scores.shape[:-1], routing.experts.shape[-1])
        return LayerRouting(routing.experts.view(shape), gates.view(shape), penalty, routing.loads)

    def add_tally(self, tally: Tally) -> None:
        """Gradients came back to the gates of a forward."""
        self.counted = tally if self.counted is None else self.counted + tally
        self.ever_counted = True

    def take_tally(self) -> Tally:
        """All that was counted since the last step, zeros where nothing was; it is counted no
        more.
        """
        tally = self.counted
        self.forget()
        return self.balancer.empty_tally() if tally is None else tally

    def forget(self) -> None:
        """Forget what was counted since the last step."""
        self.counted, self.entered = None, False
        if self.exchange is not None:
            self.exchange.forget_forwards()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a pickled layer, routes as this one does, and has counted nothing."""
        return {
            name: value
            for name, value in super().__getstate__().items()
            if name not in ("counted", "entered", "_number")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin()

    def extra_repr(self) -> str:
        return f"groups={self.groups}, renormalize={self.renormalize}, scale={self.scale:g}"
