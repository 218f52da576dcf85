"""Which ranks hold different tokens: counts are summed over those, and over no others.

By default that is every rank, which is right under data parallelism (DDP, FSDP). Under tensor and
expert parallelism several ranks hold the same tokens: summed over all ranks, each would be counted
once per rank. Only the caller knows which ranks those are, so `group=` must say it. A model shows
that it is parallelised so by the size transformers notes on it, or by its parameters' placements.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn


def check_default_group(model: nn.Module) -> None:
    """Refuse to count over all ranks where some of them hold the same tokens."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    reason = _shared_tokens(model)
    if reason is not None:
        raise ValueError(
            f"{reason}: ranks that hold the same tokens would count each of them more than once. "
            "Pass the ranks that hold different tokens as group=: the data-parallel dimension of "
            'the device mesh (mesh["dp"].get_group()), or, where there is none, each rank alone '
            "(torch.distributed.new_subgroups(1)[0]). If all ranks do hold different tokens, as "
            "with token dispatch or context parallelism, pass group=torch.distributed.group.WORLD"
        )


def _shared_tokens(model: nn.Module) -> str | None:
    """What shows that ranks hold the same tokens, or None."""
    sizes = [getattr(module, "_tp_size", None) for module in model.modules()]
    noted = [size for size in sizes if isinstance(size, int)]
    if noted:
        # holds for its expert parallelism too: only ranks of one tp group share a batch
        size = max(noted)
        return f"the model is parallelised over tp_size = {size} ranks" if size > 1 else None
    for name, module in model.named_modules():
        if getattr(module, "_is_expert_parallel", False):
            return f"the experts of {name} are spread over ranks that are given the same tokens"
    return _split_parameter(model)


def _split_parameter(model: nn.Module) -> str | None:
    """A parameter that is split over ranks, and not by FSDP alone.

    FSDP2 splits a parameter along one dimension of its mesh (and may replicate it along another).
    Any further split, or one in a model without FSDP2, is tensor or expert parallelism.
    """
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    by_fsdp = int(any(isinstance(module, FSDPModule) for module in model.modules()))
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            continue
        mesh = parameter.device_mesh
        split = [
            place
            for place, placement in enumerate(parameter.placements)
            if mesh.size(place) > 1 and not placement.is_replicate()
        ]
        if len(split) > by_fsdp:
            dimensions = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
            along = ", ".join(dimensions[place] for place in split)
            return f"{name} is split over ranks, along the mesh dimension(s) {along}"
    return None
