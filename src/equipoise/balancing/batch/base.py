"""Base: exact loads and the greatest total score under them, by an auction (auction.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.batch.auction import assign
from equipoise.balancing.batch.solver import BatchSolver, refuse_groups
from equipoise.balancing.target import Weights
from equipoise.routing import Groups, Routing, route
from equipoise.routing.checks import require_finite
from equipoise.routing.route import check_shapes


class Base(BatchSolver):
    """BASE layers (Lewis et al. 2021), for any K: exact loads, and the greatest total score under
    them.

    Each token has K distinct experts. The total score lies at most (T K + E) * tolerance * (range
    of the scores) below the greatest that these loads allow; measured, less than 1e-5 of it. See
    auction.py.

    Not causal: while training, a token's experts depend on later tokens of the batch. In evaluation
    each token takes its K highest scores, and loads are what they are.

    It makes a GPU wait many times and cannot be compiled. On a CPU it takes about a second for
    16,384 tokens and 64 experts, and ten where tokens come in crowds that are nearly equal.

    Args:
        num_experts: E.
        top_k: K.
        tolerance: how much less than possible each choice may bring, as a fraction of the scores'
            range.
        target: weights of the experts' target loads; equal by default.
    """

    def __init__(
        self, num_experts: int, top_k: int, *, tolerance: float = 1e-4, target: Weights = None
    ) -> None:
        super().__init__(num_experts, top_k, target=target)
        if not tolerance > 0:
            raise ValueError(f"tolerance must be positive, not {tolerance}")
        self.tolerance = tolerance

    def route(
        self,
        scores: Tensor,
        *,
        groups: Groups | tuple[int, int] | None = None,
        mask: Tensor | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
    ) -> Routing:
        """Experts by descending score; `runner_up` and `margin` are by score - price, 0 where a
        token gave way to others.

        Padding takes no place: it is routed by the prices of the others.
        """
        refuse_groups(groups, "base")
        if not self.training:
            return super().route(scores, mask=mask, renormalize=renormalize, scale=scale)
        check_shapes(scores, self.top_k, None, None, mask)
        flat = self.adjust(scores).flatten(0, -2)
        # whatever the mode: it waits anyway, and with NaN would wait for ever
        require_finite(flat, "scores")
        held, prices = self._match(flat, None if mask is None else mask.flatten())
        chosen = flat.masked_fill(~held, -torch.inf).view(scores.shape)
        routing = route(
            scores, self.top_k, choose_by=chosen, mask=mask, renormalize=renormalize, scale=scale
        )
        return _with_margin(routing, flat.double() - prices, held)

    def _match(self, scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(T, E) bool: who has which experts; and the prices (E,)."""
        real = scores if mask is None else scores[~mask]
        found = assign(real, self.top_k, *self.places(len(real), scores.device), self.tolerance)
        if mask is None:
            return found
        best = (scores.double() - found.prices).topk(self.top_k, dim=1).indices
        held = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, best, True)
        held[~mask] = found.held
        return held, found.prices

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tolerance={self.tolerance:g}"


def _with_margin(routing: Routing, values: Tensor, held: Tensor) -> Routing:
    """The best expert that was not chosen, by `values`, and how far the least of the chosen lies
    above it.
    """
    if held.shape[1] == routing.experts.shape[1]:
        return routing  # all are chosen: there is no runner-up, as route() says
    best_free, runner_up = values.masked_fill(held, -torch.inf).max(1)
    margin = values.masked_fill(~held, torch.inf).amin(1) - best_free
    return routing._replace(runner_up=runner_up, margin=margin.clamp_min(0).to(routing.gates.dtype))
