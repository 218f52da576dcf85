"""A bias that is a sharded parameter (FSDP2) is read and written whole, and never cast."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from equipoise.attach.find.bias import Bias

VALUES = torch.tensor([0.25, -1.0, 0.5, 0.0])


@pytest.fixture
def mesh(tmp_path):
    """Of a single rank: its tensors are sharded by their type, though one part holds them whole."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded_bias(mesh, dtype):
    owner = nn.Module()
    owner.bias = nn.Parameter(distribute_tensor(VALUES.to(dtype), mesh, [Shard(0)]))
    return Bias(owner, "bias", "gate.bias")


def test_it_is_read_and_written_whole(mesh):
    bias = sharded_bias(mesh, torch.float32)
    parameter = bias.tensor
    assert type(bias.read()) is torch.Tensor
    assert torch.equal(bias.read(), VALUES)
    bias.write(VALUES + 1)
    assert torch.equal(bias.read(), VALUES + 1)
    assert bias.tensor is parameter
    assert isinstance(parameter.data, DTensor)


def test_in_bf16_it_is_refused_before_anything_is_cast(mesh):
    bias = sharded_bias(mesh, torch.bfloat16)
    with pytest.raises(TypeError, match=r"gate\.bias is a sharded torch\.bfloat16 parameter"):
        bias.write(VALUES)
    assert bias.dtype == torch.bfloat16
