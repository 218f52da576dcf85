"""Balancer: the four verbs every method speaks.

    shifted = balancer.adjust(scores)                       before the choice
    routing = route(scores, top_k, choose_by=shifted)
    tally = balancer.tally(scores, routing)                 what must be known of this batch; adds up
    loss = loss + balancer.penalty(scores, routing)         0 for methods that leave the loss alone
    ...
    optimizer.step(); balancer.update(tally)                after the optimizer's step, once

adjust, tally and penalty are pure: they change nothing, so evaluating, recomputing and accumulating are all safe. Only
update() changes anything, and it is called by the training loop and by nobody else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from equipoise.balancing.precise import Precise
from equipoise.routing import Routing, Tally
from equipoise.routing.checks import require, shown


class Balancer(Precise, ABC):
    """The base of all balancers. `steps` counts the updates made, and is saved with the state."""

    steps: Tensor

    def __init__(self, num_experts: int, top_k: int) -> None:
        super().__init__()
        if num_experts < 1 or not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k = {top_k} of {num_experts} experts is impossible: 1 <= top_k <= num_experts")
        self.num_experts = num_experts
        self.top_k = top_k
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def adjust(self, scores: Tensor) -> Tensor:
        """(..., E) scores -> what to choose by. Carries no gradient."""

    def tally(self, scores: Tensor, routing: Routing) -> Tally:
        """What update() must know of this batch, in whole numbers that add up."""
        loads = routing.loads
        if loads.shape[0] != self.num_experts:
            raise ValueError(f"this routing is over {loads.shape[0]} experts, the balancer over {self.num_experts}")
        return Tally(loads=loads, forwards=loads.unsqueeze(0), step=self.steps.to(loads.device, copy=True))

    def penalty(
        self, scores: Tensor, routing: Routing, logits: Tensor | None = None, sequences: Tensor | None = None
    ) -> Tensor:
        """What to add to the loss: 0 here."""
        return scores.new_zeros(())

    @torch.no_grad()
    def update(self, tally: Tally) -> None:
        """Move the state by what was counted since the last update. Call it once after every optimizer step."""
        if not self.training:
            raise RuntimeError(
                "update() in evaluation: a balancer must not learn from evaluation batches. Call .train() first if this is "
                "a training step"
            )
        self._move(self._accept(tally))
        self.steps += 1

    @abstractmethod
    def _move(self, tally: Tally) -> None:
        """Change the state by a tally that was checked. `steps` still holds the number of earlier updates."""

    def _accept(self, tally: Tally) -> Tally:
        if tally.loads.shape != (self.num_experts,):
            raise ValueError(f"this tally is of {tally.loads.shape[0]} experts, the balancer has {self.num_experts}")
        tally = tally.to(self.steps.device)
        require(
            tally.step == self.steps,
            lambda: ValueError(
                f"this tally was taken at step {shown(tally.step)}, but the balancer is at step {shown(self.steps)}: it was "
                "counted under another shift. Take a new tally after every update()"
            ),
        )
        return tally

    def extra_repr(self) -> str:
        return f"num_experts={self.num_experts}, top_k={self.top_k}"
