"""PlanSolver: plans for a whole batch whose K best entries per token make loads nearly even.

Nothing waits for the device.

Send T tokens to E experts, K choices from each token and L_k to each expert: a transport problem.
Sinkhorn (sinkhorn.py) blurs it with entropy, and has a plan in closed steps; BIP (bip.py) walks
down its dual. Neither rounds its plan to a whole one, as Base does: each token just takes its K
best entries, and loads come out nearly even.

Both say their choice in scores (`adjust`), and both leave padding out of the plan if `route` is
given the mask.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from equipoise.balancing.batch.solver import BatchSolver
from equipoise.routing import Groups, Routing, route
from equipoise.routing.checks import require_tensor
from equipoise.routing.route import check_shapes


class PlanSolver(BatchSolver):
    """A method that ranks all experts for all tokens by a plan over the batch."""

    @abstractmethod
    def plan(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """(T, E) scores, at least float32, and the padding (T,) -> (T, E) what to choose by."""

    def adjust(self, scores: Tensor) -> Tensor:
        """What the plan ranks by, every token taking part; in evaluation the scores. `route` knows
        the padding too.
        """
        require_tensor(scores, "scores")
        return self._choose_by(scores, None)

    def route(
        self,
        scores: Tensor,
        *,
        groups: Groups | tuple[int, int] | None = None,
        mask: Tensor | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
    ) -> Routing:
        """As `equipoise.route`. Padding has no part in the plan, and is ranked by its prices;
        groups the plan does not know.
        """
        check_shapes(scores, self.top_k, None, None, mask)
        choose_by = self._choose_by(scores, mask)
        return route(
            scores,
            self.top_k,
            choose_by=choose_by,
            groups=groups,
            mask=mask,
            renormalize=renormalize,
            scale=scale,
        )

    def _choose_by(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        plain = super().adjust(scores)
        if not self.training:
            return plain
        flat = plain.flatten(0, -2).to(torch.promote_types(plain.dtype, torch.float32))
        return self.plan(flat, None if mask is None else mask.flatten()).view(scores.shape)
