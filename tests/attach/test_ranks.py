"""Two gloo ranks, each with half of the batch, move every bias as one rank does with all of it: DDP
and FSDP2.
"""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import equipoise
from tests.attach.tools import batch, forward, tiny
from tests.ranks import on_ranks

NAMES = ["deepseek_v3", "afmoe", "mixtral"]  # a buffer, a parameter, and no bias at all
RULES = ["deepseek", "quantile"]


def half(inputs, rank):
    """Rows 0 and 1 to rank 0, row 2 to rank 1: unequal, and padded unequally."""
    part = slice(0, 2) if rank == 0 else slice(2, 3)
    return {
        name: value[part] if torch.is_tensor(value) else value for name, value in inputs.items()
    }


def steps_like_one(rank, wrap):
    for name in NAMES:
        for rule in RULES:
            model, alone = tiny(name), tiny(name)
            wrapped = wrap(model)
            balancing = equipoise.balance(wrapped, rule)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            balancing.follow(optimizer)
            expected = []
            for seed in range(2):
                inputs = batch(seed, padded=True)
                forward(wrapped, half(inputs, rank)).backward()
                optimizer.step()
                optimizer.zero_grad()
                expected.append(inputs)
            compare(balancing, alone, rule, expected)


def compare(balancing, alone, rule, batches):
    """By hand, without reduce: the twin of one process sees the whole batches."""
    twin = equipoise.balance(alone, rule, group=only_me())
    for inputs in batches:
        forward(alone, inputs).backward()
        twin.step()
    assert [router.name for router in balancing.routers] == [router.name for router in twin.routers]
    assert balancing.metrics(loads=True)["loads"] == twin.metrics(loads=True)["loads"]
    for mine, theirs in zip(balancing.routers, twin.routers):
        assert torch.equal(mine.applied_shift, theirs.applied_shift), mine.name
        assert mine.applied_shift.any()
        if mine.found.bias is not None:
            assert torch.equal(mine.found.bias.read(), theirs.found.bias.read())


def only_me():
    groups = [dist.new_group([rank]) for rank in range(2)]
    return groups[dist.get_rank()]


def shard(model):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def under_both(rank):
    steps_like_one(rank, lambda model: DistributedDataParallel(model, find_unused_parameters=True))
    steps_like_one(rank, shard)


@pytest.mark.slow
def test_two_ranks_step_like_one(tmp_path):
    on_ranks(under_both, 2, tmp_path)
