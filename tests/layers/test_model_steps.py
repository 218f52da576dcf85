"""One step for all LayerBalancers of a model: over micro-batches, ranks and skipped steps."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import equipoise
from tests.layers.test_layer_balancer import EXPERTS, Model, batch, counts
from tests.ranks import on_ranks


def test_a_step_is_the_balancers_own():
    model = Model(rule="curvature")
    model(batch(0)).sum().backward()
    tallies = [layer.balancer.counted for layer in model.layers]
    twins = [equipoise.balancer("curvature", EXPERTS, top_k=2) for _ in tallies]
    for twin, tally in zip(twins, tallies):
        twin.update(tally)
    stepped = equipoise.step(model)
    for layer, twin in zip(model.layers, twins):
        assert torch.equal(layer.balancer.balancer.shift, twin.shift)
        assert twin.shift.any()
    assert [*stepped.loads] == ["layers.0.balancer", "layers.1.balancer"]
    measured = stepped.metrics()
    assert measured["step"] == 1
    assert measured["layers"]["layers.1.balancer"] == equipoise.metrics(tallies[1].loads)
    assert measured["imbalance"] == pytest.approx(
        sum(equipoise.metrics(tally.loads)["imbalance"] for tally in tallies) / 2
    )


def test_loads_become_even():
    model = Model(rule="curvature", layers=1)
    with torch.no_grad():
        model.layers[0].gate.weight[:2] += 0.05
    hidden = batch(0).detach() + 1
    found = []
    for _ in range(30):
        model(hidden).sum().backward()
        found.append(equipoise.step(model).metrics()["imbalance"])
    assert found[-1] < found[0] / 5


def test_a_second_step_is_refused():
    model = Model()
    model(batch(0)).sum().backward()
    equipoise.step(model)
    with pytest.raises(RuntimeError, match="nothing was counted"):
        equipoise.step(model)


def test_a_layer_may_rest():
    model = Model()
    model(batch(0)).sum().backward()
    equipoise.step(model)
    model.layers[0](batch(1)).sum().backward()
    loads = equipoise.step(model).loads
    assert loads["layers.0.balancer"].sum() > 0
    assert loads["layers.1.balancer"].sum() == 0
    assert [int(layer.balancer.balancer.steps) for layer in model.layers] == [2, 2]


def test_a_model_without_layers_of_ours_is_told():
    with pytest.raises(ValueError, match=r"Linear holds no equipoise.LayerBalancer"):
        equipoise.step(nn.Linear(2, 2))


def test_a_dropped_step_leaves_no_trace():
    model, twin = Model(rule="quantile"), Model(rule="quantile")
    model(batch(3)).sum().backward()
    with pytest.warns(UserWarning, match="skipped"):
        equipoise.drop(model)
    for each in (model, twin):
        each(batch(0)).sum().backward()
        equipoise.step(each)
    for mine, other in zip(model.layers, twin.layers):
        assert torch.equal(mine.balancer.balancer.shift, other.balancer.balancer.shift)


def test_a_followed_optimizer_steps_and_skips():
    model, twin = Model(), Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    steps = equipoise.follow(model, optimizer)
    model(batch(0)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model(batch(1)).sum().backward()
    with pytest.warns(UserWarning, match="skipped"):
        optimizer.zero_grad()  # GradScaler met an infinity: no step was taken
    assert (steps.metrics()["step"], steps.metrics()["dropped_steps"]) == (1, 1)
    twin(batch(0)).sum().backward()
    equipoise.step(twin)
    shifts = [layer.balancer.balancer.shift for layer in (model.layers[1], twin.layers[1])]
    assert torch.equal(*shifts)
    steps.unfollow()
    model(batch(0)).sum().backward()
    optimizer.step()
    assert int(model.layers[0].balancer.balancer.steps) == 1


# ---- ranks

RULES = ("deepseek", "quantile")
ONE_STEP = 2


def halves(rank, seed):
    """Unequal parts of one batch."""
    whole = batch(seed).detach()
    return (whole[:3] if rank == 0 else whole[3:]).clone().requires_grad_()


def like_one_rank(rank, wrap, kind):
    alone = [dist.new_group([each]) for each in range(2)][rank]
    for rule in RULES:
        model, twin = Model(rule=rule, kind=kind), Model(rule=rule)
        wrapped = wrap(model)
        for seed in range(ONE_STEP):
            wrapped(halves(rank, seed)).sum().backward()
            loads = equipoise.step(wrapped).loads
            twin(batch(seed)).sum().backward()
            theirs = equipoise.step(twin, alone).loads
            assert [each.tolist() for each in loads.values()] == [
                each.tolist() for each in theirs.values()
            ]
        for mine, other in zip(model.layers, twin.layers):
            assert torch.equal(mine.balancer.balancer.shift, other.balancer.balancer.shift)
            assert other.balancer.balancer.shift.any()
        assert counts_nothing(model)


def counts_nothing(model):
    return all(layer.balancer.counted is None for layer in model.layers)


def shard(model):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def under_both(rank):
    for kind in (None, "other"):
        like_one_rank(rank, DistributedDataParallel, kind)
        like_one_rank(rank, shard, kind)


def test_two_ranks_step_like_one(tmp_path):
    on_ranks(under_both, 2, tmp_path)


def test_counts_are_no_buffers():
    model = Model()
    model(batch(0)).sum().backward()
    assert counts(model)
    assert not [name for name, _ in model.named_buffers() if "counted" in name]
