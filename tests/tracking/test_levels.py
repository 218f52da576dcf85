"""The numbers that trackers are sent: right, few, and only those that are known."""

import numpy as np
import pytest
import torch

import equipoise
from equipoise.tracking import LayerBalance, balance_levels, relative_loads, switched_share

EVEN, UNEVEN = torch.tensor([10, 10, 10, 10]), torch.tensor([30, 10, 0, 0])


def test_means_and_the_worst_layer():
    levels = balance_levels({"a": LayerBalance(EVEN), "b": LayerBalance(UNEVEN)})
    assert levels == {
        "imbalance": 0.5,
        "max_violation": 1.0,
        "worst_violation": 2.0,
        "worst_layer": 1.0,
        "dead_experts": 2.0,
    }


def test_the_floor_is_what_chance_leaves():
    """Against tokens drawn at random: top-1 of 4, 40 tokens."""
    drawn = torch.from_numpy(np.random.default_rng(0).multinomial(40, [0.25] * 4, size=20_000))
    chance = np.mean([float((row / 10.0 - 1).abs().mean()) for row in drawn])
    floor = balance_levels({"a": LayerBalance(EVEN, top_k=1)})["imbalance_floor"]
    assert floor == pytest.approx(chance, rel=0.03)
    uneven = LayerBalance(EVEN, top_k=1, target=[97.0, 1.0, 1.0, 1.0])
    assert balance_levels({"a": uneven})["imbalance_floor"] > 2 * floor


def test_shares_are_joined():
    layers = {
        "a": LayerBalance(EVEN, idle_share=0.5, switched=0.2),
        "b": LayerBalance(EVEN, idle_share=0.0, switched=0.4),
        "c": LayerBalance(EVEN),
    }
    levels = balance_levels(layers)
    assert levels["switched_share"] == pytest.approx(0.3)
    # one layer takes twice the time of an even one, the other its own: 2 of 3 are work
    assert levels["idle_share"] == pytest.approx(1 / 3)


def test_a_step_without_tokens():
    empty = LayerBalance(torch.zeros(4, dtype=torch.int64), top_k=2)
    assert balance_levels({"a": empty})["imbalance"] == 0
    assert "imbalance_floor" not in balance_levels({"a": empty})
    assert relative_loads(empty).tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="no balanced layer"):
        balance_levels({})


def test_loads_are_over_their_targets():
    assert relative_loads(LayerBalance(UNEVEN)).tolist() == [3, 1, 0, 0]
    skewed = LayerBalance(UNEVEN, target=torch.tensor([3.0, 1.0, 2.0, 2.0]))
    assert relative_loads(skewed) == pytest.approx([2, 2, 0, 0])


def test_switched_tokens_are_those_of_another_set():
    """By hand, over all tokens; another order of the same experts is no switch."""
    scores = torch.rand(300, 6, generator=torch.Generator().manual_seed(0))
    before, after = torch.zeros(6), torch.tensor([0.1, 0, 0, 0, -0.05, 0])
    sets = [
        [set(row.topk(2).indices.tolist()) for row in scores + shift] for shift in (before, after)
    ]
    expected = sum(one != other for one, other in zip(*sets)) / 300
    assert 0.05 < expected < 0.5
    assert switched_share(scores, 2, before, after) == pytest.approx(expected)
    assert switched_share(scores, 2, before, before) == 0
    assert switched_share(scores[:0], 2, before, after) == 0
    groups = equipoise.Groups(3, 1)
    assert switched_share(scores, 2, before, after, groups=groups) < expected
