"""Ranks that hold the same tokens are not counted together: refused, with what to pass."""

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import equipoise
from tests.attach.tools import batch, forward, tiny
from tests.ranks import on_ranks


def split_attention(model):
    """Tensor parallelism over both ranks, as torch's own documentation does it."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    plan = {name: ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
    for layer in model.model.layers:
        parallelize_module(layer.self_attn, mesh, {**plan, "o_proj": RowwiseParallel()})
    return model


def counted_loads(balancing, model):
    forward(model, batch()).backward()
    balancing.step()
    return balancing.metrics(loads=True)["loads"]


def refused_then_given(rank):
    alone = dist.new_subgroups(1)[0]
    expected = tiny("mixtral")
    loads = counted_loads(equipoise.balance(expected, group=alone), expected)
    model = split_attention(tiny("mixtral"))
    with pytest.raises(ValueError, match=r"q_proj.* along the mesh dimension.* tp.*group="):
        equipoise.balance(model)
    assert counted_loads(equipoise.balance(model, group=alone), model) == loads


def refused_at_the_first_step(rank):
    model = tiny("mixtral")
    balancing = equipoise.balance(model)
    split_attention(model)
    with pytest.raises(ValueError, match="group="):
        counted_loads(balancing, model)


def refused_as_transformers_notes_it(rank):
    model = tiny("mixtral")
    model._tp_size = 2
    with pytest.raises(ValueError, match="tp_size = 2"):
        equipoise.balance(model)
    model._tp_size = 1
    equipoise.balance(model).detach()
    model._tp_size = None
    model.model.layers[1].mlp.experts._is_expert_parallel = True
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.experts"):
        equipoise.balance(model)
    equipoise.balance(model, group=dist.group.WORLD)


def data_parallelism_is_not_refused(rank):
    mesh = init_device_mesh("cpu", (2,))
    equipoise.balance(fully_shard(tiny("mixtral"), mesh=mesh))
    both = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    model = tiny("mixtral")
    for layer in model.model.layers:
        parallelize_module(layer.self_attn, both["tp"], {"q_proj": ColwiseParallel()})
    equipoise.balance(fully_shard(model, mesh=both["dp"]))


def all_of_them(rank):
    refused_then_given(rank)
    refused_at_the_first_step(rank)
    refused_as_transformers_notes_it(rank)
    data_parallelism_is_not_refused(rank)


def test_ranks_with_the_same_tokens_need_a_group(tmp_path):
    on_ranks(all_of_them, 2, tmp_path)


def test_one_process_is_not_asked():
    model = tiny("mixtral")
    model._tp_size = 2
    assert not dist.is_initialized()
    counted_loads(equipoise.balance(model), model)
