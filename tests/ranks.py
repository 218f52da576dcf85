"""Run a function on several gloo ranks of this machine; an exception on any fails the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def on_ranks(work: Callable[[int], None], ranks: int, folder: Path) -> None:
    """Call `work(rank)` in `ranks` processes. It must be importable: a function at the top of a
    test file.
    """
    mp.spawn(_on_rank, args=(ranks, str(folder / "rendezvous"), work), nprocs=ranks)


def _on_rank(rank: int, ranks: int, rendezvous: str, work: Callable[[int], None]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    try:
        work(rank)
    finally:
        dist.destroy_process_group()
