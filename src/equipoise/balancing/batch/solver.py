"""BatchSolver: balancers that look at the whole batch, and solve its assignment problem instead of
learning a shift.

A shift is learnt from batches that are past, and leaves what chance does to the next one. With all
tokens at hand one can do better: choose for all of them together, so that the loads of this very
batch come out even. Five methods do so:

    Base          every load exact, and the greatest total score there is      base.py
    TruncatedAuction  every load exact if it ends in time, and nearly the greatest total score
                                                                               truncated_auction.py
    ExpertChoice  every load exact, since experts choose their tokens; a token may
                  get any number of experts                                    expert_choice.py
    Sinkhorn      nearly even: the K best of an entropic transport plan        sinkhorn.py
    BIP           more even than not: a few rounds of prices on the batch      bip.py

They keep no state, and update() only counts. What they pay: a token's experts depend on the other
tokens of its batch, later ones of its own sequence among them. Such a choice cannot be made while a
decoder generates, and it tells a token something of what follows (with ExpertChoice much). So in
evaluation all of them do without: each token takes its K highest scores.

Loads. T tokens that are not padding make T K choices; expert k should have T K w_k / sum(w) of
them, with w = 1 unless a target is given. Where that is not whole, it has the next whole number
below or above.
"""

from __future__ import annotations

from abc import ABC

import torch
from torch import Tensor

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.target import Target, Weights
from equipoise.routing import Tally
from equipoise.routing.checks import require_tensor

# relative: a target load this near to a whole number is one, and was missed by rounding
_WHOLE_LOAD = 1e-11


class BatchSolver(Balancer, ABC):
    """What the methods that solve a batch have in common: a target, and nothing to learn.

    Args:
        num_experts: E.
        top_k: K.
        target: weights of the experts' target loads; equal by default.
    """

    def __init__(self, num_experts: int, top_k: int, *, target: Weights = None) -> None:
        super().__init__(num_experts, top_k)
        self.target = Target(num_experts, top_k, target)

    @property
    def tokens_are_independent(self) -> bool:
        return False

    def adjust(self, scores: Tensor) -> Tensor:
        """The scores themselves. What else is chosen by is known to `route` alone."""
        require_tensor(scores, "scores")
        if scores.shape[-1] != self.num_experts:
            raise ValueError(
                f"scores are over {scores.shape[-1]} experts, the balancer over {self.num_experts}"
            )
        return scores.detach()

    def _move(self, tally: Tally) -> None:
        """Nothing is learnt: the next batch is solved for itself."""

    def places(self, num_tokens: int | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """The least and the most tokens each expert may have, (E,) int64 each.

        Nothing waits, even if the number is on a device.
        """
        weights = self.target.weights.to(device)
        loads = weights / weights.sum() * (num_tokens * self.top_k)
        whole = loads.round()
        loads = torch.where((loads - whole).abs() <= _WHOLE_LOAD * whole, whole, loads)
        return loads.floor().long(), loads.ceil().long()


def refuse_groups(groups: object, name: str) -> None:
    """Groups limit a token's choice, and these methods choose for all tokens together."""
    if groups is not None:
        raise ValueError(
            f"{name} matches all tokens with all experts and cannot keep to groups: route without "
            "groups, or choose a balancer that learns a shift"
        )
