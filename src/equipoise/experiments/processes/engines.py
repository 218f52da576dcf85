"""engines: what brings many jobs to their end, by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from equipoise.experiments.processes.display import Display
from equipoise.experiments.processes.job import AttemptOptions, Work
from equipoise.experiments.processes.local import LocalEngine
from equipoise.experiments.processes.ray import RayEngine

ENGINES = ("local", "ray")


class Engine(Protocol):
    """Brings jobs to their end."""

    def run(self, jobs: Sequence[Work], display: Display) -> None:
        """Until each is finished or failed."""


def make_engine(
    name: str,
    workers: int,
    address: str | None,
    cpus: float,
    gpus: float,
    processes: int,
    keep: bool,
) -> Engine:
    """The engine of this name; what does not go with it is refused."""
    if name == "local":
        if address is not None:
            raise ValueError("--address names a Ray cluster: it goes with --engine ray")
        threads = max(1, (os.cpu_count() or 1) // (workers * processes)) if workers > 0 else 1
        return LocalEngine(workers, AttemptOptions(processes, threads, keep))
    if name == "ray":
        options = AttemptOptions(processes, max(1, int(cpus) // processes), keep)
        return RayEngine(address, cpus, gpus, options)
    raise ValueError(f"no engine {name!r}: there are {' and '.join(ENGINES)}")
