"""Routing, counting and adjusting by any balancer, told whose each token is if it asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.shift.dual import Dual
from equipoise.routing import Routing, Tally


def route_and_tally(
    balancer: Balancer, sequences: Tensor | None
) -> tuple[Callable[..., Routing], Callable[[Tensor, Routing], Tally]]:
    """`balancer.route` and `balancer.tally` of tokens whose sequences (...) are these."""
    if not isinstance(balancer, Dual) or not balancer.uses_sequences:
        return balancer.route, balancer.tally
    return (
        partial(balancer.route, sequences=sequences),
        partial(balancer.tally, sequences=sequences),
    )


def adjust_scores(
    balancer: Balancer, scores: Tensor, mask: Tensor | None, sequences: Tensor | None
) -> Tensor:
    """`balancer.adjust` of scores (..., E), in their shape."""
    if not isinstance(balancer, Dual) or not balancer.uses_sequences:
        return balancer.adjust(scores.flatten(0, -2)).view_as(scores)
    return balancer.adjust(scores, mask, sequences)
