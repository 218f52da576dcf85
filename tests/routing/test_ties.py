"""Ties: a token's choice depends on its own row and nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import route


def coins(num_tokens, num_experts, seed=0):
    """Scores of 0 and 1 only: nearly every choice is a tie."""
    return torch.randint(
        0, 2, (num_tokens, num_experts), generator=torch.Generator().manual_seed(seed)
    ).float()


def same_choice(one, other):
    return torch.equal(one.experts, other.experts) and torch.equal(one.runner_up, other.runner_up)


@settings(deadline=None, max_examples=60)
@given(
    row=st.lists(st.integers(0, 1), min_size=8, max_size=24).filter(lambda row: len(row) % 4 == 0),
    top_k=st.integers(1, 4),
    groups=st.sampled_from([None, (4, 2)]),
    before=st.integers(0, 20),
    after=st.integers(0, 20),
)
def test_neighbours_change_no_choice(row, top_k, groups, before, after):
    row = torch.tensor([row], dtype=torch.float32)
    batch = torch.cat((coins(before, row.shape[1]), row, coins(after, row.shape[1], seed=1)))
    alone = route(row, top_k, groups=groups)
    among = route(batch, top_k, groups=groups)
    assert torch.equal(among.experts[before], alone.experts[0])
    assert torch.equal(among.runner_up[before], alone.runner_up[0])


@pytest.mark.parametrize(("num_experts", "top_k"), [(8, 2), (64, 6), (256, 8), (1024, 2)])
def test_large_batch_changes_no_choice(num_experts, top_k):
    batch = coins(3000, num_experts)  # enough for torch to share it out to threads
    whole = route(batch, top_k)
    for token in range(0, 3000, 97):
        alone = route(batch[token : token + 1], top_k)
        assert torch.equal(whole.experts[token], alone.experts[0])


def test_repetition_changes_no_choice():
    batch = coins(500, 64)
    first = route(batch, 6, groups=(8, 4))
    assert all(same_choice(route(batch.clone(), 6, groups=(8, 4)), first) for _ in range(5))


def test_memory_layout_changes_no_choice():
    batch = coins(500, 64)
    by_columns = batch.t().contiguous().t()
    assert same_choice(route(by_columns, 6), route(batch, 6))


def test_equal_rows_choose_equally():
    experts = route(coins(1, 64).expand(400, 64), 6).experts
    assert torch.equal(experts, experts[:1].expand(400, 6))
