"""Replay: run one balancer over batches of scores and keep what it achieved.

The scores do not react to it. cells.py does the same with groups, padding and more measures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from equipoise.arena.streams.stream import Batch
from equipoise.balancing import Balancer
from equipoise.routing import metrics


def replay(stream: Iterable[Tensor | Batch], balancer: Balancer) -> Iterator[dict[str, float]]:
    """Route every batch with the shift as it is, update, and yield the batch's metrics.

    Args:
        stream: batches of scores (T, E), or a Stream.
        balancer: starts with the shift it has.
    """
    for each in stream:
        batch = each if isinstance(each, Batch) else Batch(each)
        routing = balancer.route(batch.scores, mask=batch.mask)
        balancer.update(balancer.tally(batch.scores, routing))
        yield {name: float(value) for name, value in metrics(routing.loads).items()}
