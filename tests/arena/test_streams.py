"""Streams repeat themselves exactly, and the sampling floor is what chance leaves."""

import pytest
import torch

import equipoise
from equipoise.arena.replay import replay
from equipoise.arena.streams.drifting import DriftingLogits
from equipoise.arena.streams.stream import sampling_floor


def test_streams_repeat():
    stream = DriftingLogits(32, 8, steps=3, drift=0.1)
    for first, second in zip(stream.draw_batches(), stream.draw_batches(), strict=True):
        assert torch.equal(first, second)


def test_any_batch_may_be_asked_for():
    stream = DriftingLogits(32, 8, steps=4, drift=0.1)
    drawn = list(stream.draw_batches())
    for step in (2, 2, 3, 0, 1, 3):
        assert torch.equal(stream.batch(step).scores, drawn[step])
    with pytest.raises(IndexError, match="steps 0 to 3, not 4"):
        stream.batch(4)


def test_a_stream_is_replayed_as_its_scores():
    stream = DriftingLogits(256, 8, steps=4, drift=0.1)
    of_stream, of_scores = (
        list(replay(batches, equipoise.balancer("quantile", 8, top_k=2)))
        for batches in (stream, stream.draw_batches())
    )
    assert of_stream == of_scores


def test_seeds_differ():
    first, second = (next(DriftingLogits(32, 8, seed=seed).draw_batches()) for seed in (0, 1))
    assert not torch.equal(first, second)


def test_a_swap_changes_two_experts():
    calm, swapped = (
        list(DriftingLogits(4096, 20, steps=2, swap_at=at).draw_batches()) for at in (None, 1)
    )
    assert torch.equal(calm[0], swapped[0])
    moved = (calm[1].log() - swapped[1].log()).mean(0)
    moved = (moved - moved.median()).abs() > 0.05
    assert moved.sum() == 2


def test_scores_are_softmax():
    scores = next(DriftingLogits(32, 8).draw_batches())
    torch.testing.assert_close(scores.sum(1), torch.ones(32))


@pytest.mark.parametrize(("num_tokens", "num_experts", "top_k"), [(4096, 16, 2), (2048, 64, 6)])
def test_floor_is_what_chance_leaves(num_tokens, num_experts, top_k):
    """Monte Carlo: without skew every expert is equally likely, and nothing is shifted."""
    stream = DriftingLogits(num_tokens, num_experts, steps=200, skew=0.0).draw_batches()
    measured = [
        step["imbalance"]
        for step in replay(stream, equipoise.balancer("none", num_experts, top_k=top_k))
    ]
    mean = sum(measured) / len(measured)
    assert mean == pytest.approx(sampling_floor(num_tokens, num_experts, top_k), rel=0.03)


def test_balancers_beat_none():
    stream = DriftingLogits(2048, 16, steps=20)
    final = {
        name: list(replay(stream.draw_batches(), equipoise.balancer(name, 16, top_k=2)))[-1]
        for name in ("none", "quantile")
    }
    assert final["quantile"]["imbalance"] < 0.2 * final["none"]["imbalance"]
