"""Run a function on several gloo ranks of this machine; an exception on any fails the test."""

from __future__ import annotations

import os
import sys
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
        dist.barrier()  # no rank closes its sockets while another still works
    finally:
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # gloo's threads sometimes abort a process that ends the usual way ("terminate called without an
    # active exception", once in CI after all the work was done); the work is judged, not the exit.
    os._exit(0)
