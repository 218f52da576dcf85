"""The order of sequences: complete, repeatable, and shared among ranks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.training.data.batches import Batches, validation_batches, validation_windows

TOKENS = np.arange(101, dtype=np.uint16)  # 10 windows of 10


def starts(batches, steps):
    return [int(row[0]) // 10 for step in steps for row in batches[step][0]]


def test_targets_come_next():
    inputs, targets = Batches(TOKENS, 10, 4, seed=0)[3]
    assert inputs.shape == targets.shape == (4, 10)
    assert torch.equal(targets, inputs + 1)


def test_an_epoch_sees_everything_once():
    batches = Batches(TOKENS, 10, 5, seed=0)
    first, second = starts(batches, range(2)), starts(batches, range(2, 4))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_batches_span_epochs():
    batches = Batches(TOKENS, 10, 4, seed=0)
    assert sorted(starts(batches, range(5))) == sorted(list(range(10)) * 2)
    assert batches.epoch(5) == 2.0


def test_any_step_can_be_asked_for():
    one, other = Batches(TOKENS, 10, 4, seed=3), Batches(TOKENS, 10, 4, seed=3)
    straight = [one[step][0] for step in range(12)]
    assert torch.equal(other[11][0], straight[11])
    assert torch.equal(other[2][0], straight[2])


def test_seeds_differ():
    assert starts(Batches(TOKENS, 10, 5, seed=0), [0, 1]) != starts(
        Batches(TOKENS, 10, 5, seed=1), [0, 1]
    )


def test_ranks_share_a_batch():
    whole = Batches(TOKENS, 10, 4, seed=0)[7][0]
    parts = [Batches(TOKENS, 10, 4, seed=0, rank=rank, ranks=2)[7][0] for rank in range(2)]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_validation_is_seen_once(ranks):
    rows = [
        row
        for rank in range(ranks)
        for x, _ in validation_batches(TOKENS, 10, 2, 7, rank, ranks)
        for row in x
    ]
    assert sorted(int(row[0]) // 10 for row in rows) == validation_windows(TOKENS, 10, 7)


def test_validation_is_spread_over_the_whole_split():
    assert validation_windows(TOKENS, 10, 2) == [2, 7]
    assert validation_windows(TOKENS, 10, 5) == [1, 3, 5, 7, 9]
    assert (
        validation_windows(TOKENS, 10, 0) == validation_windows(TOKENS, 10, 99) == list(range(10))
    )


@given(windows=st.integers(1, 500), number=st.integers(0, 600))
def test_validation_leaves_no_gap(windows, number):
    chosen = validation_windows(np.zeros(windows * 3 + 1, np.uint16), 3, number)
    assert len(set(chosen)) == min(number or windows, windows)
    apart = np.diff([-1, *chosen, windows])
    assert apart.min() >= 1
    assert apart.max() <= windows / len(chosen) + 1


def test_short_corpora_are_refused():
    with pytest.raises(
        ValueError, match="has 101 training tokens, too few for one sequence of 101"
    ):
        Batches(TOKENS, 101, 1, seed=0)
    with pytest.raises(ValueError, match="4 sequences cannot be shared equally by 3 ranks"):
        Batches(TOKENS, 10, 4, seed=0, ranks=3)
