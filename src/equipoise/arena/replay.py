"""Replay: run one balancer over batches of scores and keep what it achieved.

The scores do not react to it. cells.py does the same with groups, padding and more measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from equipoise.balancing import Balancer
from equipoise.routing import metrics


def replay(stream: Iterable[Tensor], balancer: Balancer) -> Iterator[dict[str, float]]:
    """Route every batch with the shift as it is, update, and yield the batch's metrics."""
    for scores in stream:
        routing = balancer.route(scores)
        balancer.update(balancer.tally(scores, routing))
        yield {name: float(value) for name, value in metrics(routing.loads).items()}
