"""Two gloo ranks, each with half of the batch, take the step that one rank takes with all of it."""

import torch
import torch.distributed as dist

import equipoise
from tests.contracts.table import (
    NUM_TOKENS,
    ROWS,
    assert_same_state,
    assert_same_tally,
    exact_scores,
    forward,
)
from tests.ranks import on_ranks


def steps_like_one_rank(rank):
    balancers = {str(row): row.make() for row in ROWS}
    alone = {str(row): row.make() for row in ROWS}
    for seed in range(3):
        scores = exact_scores(seed=seed)
        mine = scores.split([64, NUM_TOKENS - 64])[rank]  # unequal parts
        summed = equipoise.reduce(
            {name: forward(balancer, mine)[1] for name, balancer in balancers.items()}
        )
        for name, balancer in alone.items():
            whole = forward(balancer, scores)[1]
            assert_same_tally(summed[name], whole)
            balancer.update(whole)
            balancers[name].update(summed[name])
            assert_same_state(balancers[name], balancer)
    shift = torch.stack([balancer.shift for balancer in balancers.values()])
    both = [torch.empty_like(shift) for _ in range(2)]
    dist.all_gather(both, shift)
    assert torch.equal(*both)


def test_two_ranks_step_like_one(tmp_path):
    on_ranks(steps_like_one_rank, 2, tmp_path)
