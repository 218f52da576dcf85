"""Several ranks: started by torchrun, or one alone.

    torchrun --nproc-per-node 8 -m equipoise train ...

Every rank trains on its own part of each batch. With ddp each holds the whole model; with fsdp
(FSDP2) the weights, gradients and optimizer's state are shared out and gathered layer by layer.
Both average gradients; tallies add up in one collective (equipoise.reduce). Balancers are small and
whole on every rank, and make the same update from the same sums.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from equipoise.model import DeepSeekMoE
from equipoise.training.config import Config
from equipoise.training.lost_rank import (
    describe_lost_rank,
    is_lost_rank,
    leave_without_destructors,
)

# the newer name of broadcast_buffers
_NEW_NAME = "forward_sync_buffers"
_SYNC_BUFFERS = (
    _NEW_NAME
    if _NEW_NAME in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


@dataclass(frozen=True)
class World:
    """This rank among the others."""

    rank: int
    ranks: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def mean(self, values: list[float]) -> list[float]:
        """Each number's mean over ranks."""
        return [value / self.ranks for value in self.sum(values)]

    def sum(self, values: list[float]) -> list[float]:
        if self.ranks == 1:
            return values
        wire = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(wire)
        return wire.tolist()

    def sum_counts(self, counts: Tensor) -> Tensor:
        """The sum over ranks of whole numbers."""
        if self.ranks > 1:
            dist.all_reduce(counts)
        return counts

    def wait(self) -> None:
        if self.ranks > 1:
            dist.barrier()


@contextlib.contextmanager
def join_ranks(config: Config) -> Iterator[World]:
    """The process group: the one that is there, or the one torchrun describes, or none."""
    started = False
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        backend = "nccl" if choose_device(config).type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=config.rank_timeout))
        started = True
    try:
        together = dist.is_initialized()
        yield World(
            dist.get_rank() if together else 0,
            dist.get_world_size() if together else 1,
            choose_device(config),
        )
    except RuntimeError as error:
        if not (dist.is_initialized() and is_lost_rank(error)):
            raise
        leave_without_destructors(error)
        raise ConnectionError(describe_lost_rank(error, config)) from error
    finally:
        if started:
            dist.destroy_process_group()


def parallelise_model(net: DeepSeekMoE, world: World, config: Config) -> nn.Module:
    """The model as it is called in training."""
    if world.ranks == 1:
        return net
    if config.parallel == "ddp":
        options: dict[str, Any] = {_SYNC_BUFFERS: False}  # balancers are alike already
        return DistributedDataParallel(net, **options)
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    return net


@contextlib.contextmanager
def accumulate_gradients(model: nn.Module, more_to_come: bool) -> Iterator[None]:
    """Gradients cross the wire once a step, with the last micro-batch."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(not more_to_come)
        yield
    elif isinstance(model, DistributedDataParallel) and more_to_come:
        with model.no_sync():
            yield
    else:
        yield


def full_value(value: Tensor) -> Tensor:
    """A sharded tensor's full value."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def choose_device(config: Config) -> torch.device:
    """The device a config names, once it is known that something can be computed there."""
    kind = config.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind != "cuda":
        return _check_device(kind)
    if not torch.cuda.is_available():
        raise ValueError(
            "device = 'cuda', but torch finds no CUDA device here: choose cpu, or install torch "
            "for CUDA"
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _check_device(kind: str) -> torch.device:
    try:
        device = torch.device(kind)
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device = {kind!r} cannot be used: {str(error).splitlines()[0]}"
        ) from None
    if device.type == "meta":
        raise ValueError("device = 'meta' holds no numbers: nothing can be trained on it")
    return device
