"""The floor: the imbalance that chance alone leaves when every expert is as likely as it should be.

Independent tokens: a load is binomial(T, q_k) with q_k the expert's share of tokens, so E|A_k -
L_k| / L_k is sqrt(2/pi (1 - q_k) / (T q_k)), and the floor is its mean over experts.

Tokens of a sequence are alike, and fewer sequences than tokens are drawn. Then the batch itself
shows how much loads vary: draw its sequences again with replacement, and measure how far the loads
are from the batch's own (block bootstrap). With n sequences the spread is too small by a factor of
sqrt(1 - 1/n), which is corrected.
"""

from __future__ import annotations

import numpy as np
import torch

from equipoise.arena.streams.stream import Batch, Stream
from equipoise.balancing import Balancer, balancer
from equipoise.routing import metrics, sequence_loads
from equipoise.routing.chance import binomial_floor
from equipoise.storage.renamed import old_names

_UPDATES = 12
"""on one batch: the curvature rule is within a few tokens of balance by then"""

__getattr__ = old_names(__name__, {"floor": "imbalance_floor"})


def imbalance_floor(stream: Stream, batches: int = 4, draws: int = 100) -> float:
    """By formula for independent tokens, by a block bootstrap over the stream's last batches for
    others.
    """
    last = [stream.batch(step) for step in range(max(0, stream.steps - batches), stream.steps)]
    if stream.block is None:
        share = expert_shares(stream)
        floors = [binomial_floor(len(batch.tokens), share) for batch in last]
    else:
        floors = [bootstrap_floor(stream, batch, draws) for batch in last]
    return float(np.mean(floors))


def expert_shares(stream: Stream) -> np.ndarray:
    """(E,): q_k, the share of tokens an expert should have."""
    weights = (
        np.ones(stream.num_experts) if stream.target is None else np.asarray(stream.target, float)
    )
    return stream.top_k * weights / weights.sum()


def bootstrap_floor(stream: Stream, batch: Batch, draws: int = 100, seed: int = 0) -> float:
    """Mean imbalance of batches made of this one's sequences."""
    assert stream.block is not None
    loads = balanced_sequence_loads(stream, batch)
    blocks = len(loads)
    if blocks < 2:
        raise ValueError(
            f"{stream.name} has {blocks} sequence in a batch: a bootstrap needs at least 2"
        )
    times = np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), size=draws)
    drawn, whole = times @ loads, loads.sum(0)
    # sequences may be of unequal lengths
    drawn *= whole.sum() / drawn.sum(1, keepdims=True)
    moved = np.abs(drawn - whole) / (expert_shares(stream) * whole.sum() / stream.top_k)
    return float(moved.mean() * (blocks / (blocks - 1)) ** 0.5)


def balanced_sequence_loads(stream: Stream, batch: Batch) -> np.ndarray:
    """(blocks, E): what each sequence gives each expert, under a shift that balances this batch."""
    rule = balance_batch(stream, batch)
    routing = rule.route(batch.scores, groups=stream.groups, mask=batch.mask)
    loads = sequence_loads(routing.experts, stream.num_experts, stream.block or 1, mask=batch.mask)
    return loads.double().numpy()


def balance_batch(stream: Stream, batch: Batch, updates: int = _UPDATES) -> Balancer:
    """A balancer that has seen the same batch until it was balanced, with its best shift."""
    rule = balancer(
        "curvature", stream.num_experts, top_k=stream.top_k, target=stream.target, stride=1
    )
    target = None if stream.target is None else torch.tensor(stream.target)
    best, found = float("inf"), {name: value.clone() for name, value in rule.state_dict().items()}
    for _ in range(updates):
        routing = rule.route(batch.scores, groups=stream.groups, mask=batch.mask)
        level = float(metrics(routing.loads, target=target)["imbalance"])
        if level < best:
            best, found = level, {name: value.clone() for name, value in rule.state_dict().items()}
        rule.update(rule.tally(batch.scores, routing))
    rule.load_state_dict(found)
    return rule
