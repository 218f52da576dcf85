"""Two gloo ranks with megatron-core's own groups, layers and dispatchers: every token is counted
once, whichever ranks see it.
"""

import pytest
import torch
import torch.distributed as dist

import equipoise
from equipoise.integrations import megatron
from tests.integrations.megatron import on_cpu
from tests.integrations.megatron.on_cpu import EXPERTS, HIDDEN, TOP_K, config
from tests.ranks import on_ranks

pytestmark = pytest.mark.slow
pytest.importorskip("megatron.core")
LENGTH, BATCH = 32, 2


def build(balancer, **settings):
    torch.manual_seed(0)
    with megatron.install_router(balancer):
        model = on_cpu.Model(config(**settings))
    with torch.no_grad():
        for router in model.routers:
            router.weight.add_(torch.linspace(-0.3, 0.3, EXPERTS)[:, None])
    return model


def data(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(LENGTH, BATCH, HIDDEN, generator=generator) + 0.3


def gathered(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts


def finalize(model):
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads

    finalize_model_grads([model])


def train(model, rank, steps, update=finalize):
    """Some optimizer steps on data of this rank; yields what its experts were given, by layer."""
    received = [[] for _ in model.layers]
    for layer, counts in zip(model.layers, received):
        layer.experts.register_forward_pre_hook(lambda m, args, c=counts: c.append(args[1].long()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        for counts in received:
            counts.clear()
        for micro in range(2):
            hidden = data(100 * step + 10 * micro + rank).requires_grad_()
            model(hidden).square().mean().backward()
        update(model)
        optimizer.step()
        optimizer.zero_grad()
        yield [sum(counts) for counts in received]


def expert_parallel(rank):
    for dispatcher in ("alltoall", "allgather"):
        with on_cpu.parallel(expert=2):
            model = build(
                "curvature", expert_model_parallel_size=2, moe_token_dispatcher_type=dispatcher
            )
            imbalance = []
            for received in train(model, rank, 12):
                for router, counts in zip(model.routers, received):
                    # this rank's experts, then the other's: all tokens of both ranks
                    assert torch.equal(router.loads, torch.cat(gathered(counts)))
                    assert router.loads.sum() == 2 * 2 * LENGTH * BATCH * TOP_K
                    shifts = gathered(router.balancer.shift)
                    assert torch.equal(*shifts)
                imbalance.append(equipoise.metrics(model.routers[0].loads)["imbalance"])
            assert imbalance[0] > 0.9
            assert sum(imbalance[-4:]) / 4 < 0.25


def data_parallel_as_one_process(rank):
    """What two ranks learn from two halves of a batch is what one learns from both."""
    with on_cpu.parallel():
        model = build("curvature")
        for _ in train(model, rank, 1):
            pass
        loads = [router.loads for router in model.routers]
        router = build("curvature").routers[0]
        for each in range(2):
            for micro in range(2):
                router(data(10 * micro + each))
        tally = router.take_tally()
        assert torch.equal(tally.loads, loads[0])
        router.balancer.update(tally)
        assert torch.equal(router.balancer.shift, model.routers[0].balancer.shift)


def sequence_parallel(rank):
    """Ranks of one tensor-parallel group hold different parts of the sequence."""
    with on_cpu.parallel(tensor=2, expert=2, expert_tensor=1):
        model = build(
            "curvature",
            tensor_model_parallel_size=2,
            expert_model_parallel_size=2,
            expert_tensor_parallel_size=1,
            sequence_parallel=True,
        )
        # their finalize wants their wrapper of a model here
        for received in train(model, rank, 3, update=megatron.router_step):
            for router, counts in zip(model.routers, received):
                assert torch.equal(router.loads, torch.cat(gathered(counts)))
                assert router.loads.sum() == 2 * 2 * LENGTH * BATCH * TOP_K


def tensor_parallel_alone(rank):
    """Ranks of one tensor-parallel group hold the same tokens: Megatron's layer refuses to train
    so, and a router that is called all the same counts each token once.
    """
    with on_cpu.parallel(tensor=2):
        model = build("curvature", tensor_model_parallel_size=2)
        with pytest.raises(ValueError, match="without also enabling sequence parallelism"):
            model(data(0))
        for router in model.routers:
            router(data(0))
        megatron.router_step(model)
        assert all(int(r.loads.sum()) == LENGTH * BATCH * TOP_K for r in model.routers)


def recomputed(rank):
    """Also where experts are on both ranks, so that the recomputation communicates."""
    with on_cpu.parallel(expert=2):
        settings = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
        loads = []
        for more in ({}, settings):
            model = build("curvature", expert_model_parallel_size=2, **more)
            for _ in train(model, rank, 2):
                pass
            loads.append([router.loads for router in model.routers])
        for here, there in zip(*loads):
            assert torch.equal(here, there)


@pytest.mark.parametrize(
    "work",
    [
        expert_parallel,
        data_parallel_as_one_process,
        sequence_parallel,
        tensor_parallel_alone,
        recomputed,
    ],
    ids=lambda work: work.__name__,
)
def test_two_ranks_count_every_token_once(work, tmp_path):
    on_ranks(work, 2, tmp_path)
