"""Which forwards of a router count: each micro-batch of a training once, whatever is recomputed.

Megatron's checkpoint runs a forward without gradients, and runs it again in the backward pass with
them. torch's own (use_reentrant=False) has gradients on both times. A router sees neither kind; it
sees whether gradients are on and whether a backward pass is running:

    outside of a backward pass, gradients on    count
    outside of a backward pass, gradients off   remember: it may be recomputed
    in a backward pass, gradients on            count if one is remembered: it is its recomputation
    in a backward pass, gradients off           an inner checkpoint; its own recomputation follows

A router in evaluation counts nothing.
"""

from __future__ import annotations

import warnings

import torch

from equipoise.routing import Tally
from equipoise.routing.recomputation import in_backward

_TOO_MANY_FORWARDS = 4096


class ForwardCounter:
    """What a router has counted since the last step, and which forwards may still be."""

    def __init__(self) -> None:
        self.tally: Tally | None = None
        self._without_gradients = 0
        self._warned = False

    def enter_forward(self, training: bool) -> bool:
        """A forward begins: does it count? To be asked once for each."""
        if not training:
            return False
        recomputes = in_backward()
        if not torch.is_grad_enabled():
            self._without_gradients += not recomputes
            return False
        if not recomputes:
            return True
        awaited = self._without_gradients > 0
        self._without_gradients -= awaited
        return awaited

    def add(self, tally: Tally) -> None:
        self.tally = tally if self.tally is None else self.tally + tally
        if len(self.tally.forwards) > _TOO_MANY_FORWARDS and not self._warned:
            self._warned = True
            warnings.warn(
                f"{_TOO_MANY_FORWARDS} forwards were counted since the last update of equipoise's "
                "routers: is megatron-core's finalize_model_grads called? Otherwise call "
                "equipoise.integrations.megatron.router_step(model) after every global batch",
                stacklevel=2,
            )

    def take(self) -> Tally | None:
        """What was counted; counting begins anew."""
        tally, self.tally = self.tally, None
        self._without_gradients = 0
        return tally
