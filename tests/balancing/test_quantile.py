"""Quantile balancing on batches that differ in size; its mathematics is compared in agreement/."""

import pytest
import torch

import equipoise
from equipoise.arena.replay import replay
from equipoise.arena.streams.drifting import DriftingLogits


def late_imbalance(small, seed=7):
    """Of the large batches, where every second one has `small` tokens."""
    balancer = equipoise.balancer("quantile", 8, top_k=2)
    stream = enumerate(DriftingLogits(1024, 8, steps=200, seed=seed).draw_batches())
    batches = (scores[: small if step % 2 else None] for step, scores in stream)
    history = [measured["imbalance"] for measured in replay(batches, balancer)]
    return sum(history[100::2]) / 50


@pytest.mark.parametrize("small", [1, 16])
def test_small_batches_weigh_little(small):
    """Batches of 1,024 tokens and of few in turn: 0.52 and 0.26, where equal ones have 0.06."""
    assert late_imbalance(small) <= 1.1 * late_imbalance(1024)


def test_batches_of_one_size_count_whole():
    """To the last digit: the move is the published one."""
    balancer = equipoise.balancer("quantile", 8, top_k=2)
    for scores in DriftingLogits(333, 8, steps=5).draw_batches():
        tally = balancer.tally(scores, balancer.route(scores))
        unweighted = equipoise.balancer("quantile", 8, top_k=2)
        unweighted.load_state_dict(balancer.state_dict())
        unweighted.direction.usual_tokens.zero_()
        unweighted.update(tally)
        balancer.update(tally)
        assert torch.equal(balancer.shift, unweighted.shift)
        assert torch.equal(balancer.direction.width, unweighted.direction.width)
    assert float(balancer.direction.usual_tokens) == 333.0


def test_states_that_know_no_usual_size_load():
    balancer = equipoise.balancer("quantile", 8, top_k=2)
    scores = next(DriftingLogits(333, 8, steps=5).draw_batches())
    balancer.update(balancer.tally(scores, balancer.route(scores)))
    state = balancer.state_dict()
    del state["direction.usual_tokens"]
    used = equipoise.balancer("quantile", 8, top_k=2)
    used.load_state_dict(state)
    assert torch.equal(used.shift, balancer.shift)


@pytest.mark.parametrize("lacking", ["runner_up", "margin"])
def test_a_routing_without_runner_up_or_margin_is_refused(lacking):
    balancer = equipoise.balancer("quantile", 8, top_k=2)
    scores = next(DriftingLogits(64, 8, steps=1).draw_batches())
    routing = balancer.route(scores)._replace(**{lacking: None})
    with pytest.raises(ValueError, match="this balancer needs the runner-up"):
        balancer.tally(scores, routing)
