"""Where torchtitan keeps what balancing needs: MoE layers, their buffers, and the meshes of ranks.

Names differ by release: buffers end in `_E` since 0.3, and the mesh of the dense layers' tensor
parallelism has had a method of its own since.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.")


def moe_buffer(moe: nn.Module, name: str) -> Any:
    """A buffer of an MoE layer, by its name before 0.3; None where there is none."""
    return getattr(moe, f"{name}_E", getattr(moe, name, None))


def local_tensor(value: Any) -> Tensor:
    """This rank's part of a tensor."""
    return value.to_local() if hasattr(value, "to_local") else value


def modules_that_count(model_parts: list[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) of every MoE layer: what has a router and counts tokens per expert."""
    seen: set[str] = set()
    for number, part in enumerate(model_parts):
        for path, module in part.named_modules():
            if moe_buffer(module, "tokens_per_expert") is None or not hasattr(module, "router"):
                continue
            name = path
            for wrapper in _WRAPPERS:
                name = name.replace(wrapper, "")
            name = name if name not in seen else f"part {number}: {name}"
            seen.add(name)
            yield name, module


def groups_of_tokens(parallel_dims: Any) -> list[dist.ProcessGroup]:
    """The groups over which ranks hold different tokens: sums go over each of them in turn.

    Under expert parallelism the router's tokens are split over the tensor-parallel ranks too;
    without it those ranks hold the same ones.
    """
    groups = []
    if parallel_dims.ep_enabled and parallel_dims.tp > 1:
        # Since spmd_types the tensor-parallel ranks of the dense layers have a mesh of their own.
        # Releases to 0.3.0 know only one.
        dense = getattr(parallel_dims, "get_dense_tp_mesh", None)
        mesh = parallel_dims.get_mesh("tp") if dense is None else dense()
        groups.append(mesh.get_group())
    mesh = parallel_dims.get_optional_mesh("loss")
    if mesh is not None:
        groups.append(mesh.get_group())
    return groups
