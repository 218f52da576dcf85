"""jobs: many trainings, some at once, each in a process of its own.

A run that has its result.json is not repeated; one that was cut goes on from its checkpoint; one
that fails is recorded in failure.json beside its other files, does not stop the rest, and is tried
again the next time. Asked to stop (Ctrl-C, SIGTERM), all running ones write a checkpoint first. If
whoever started them is killed, they do so too (guard.py).

Started by torchrun, all ranks train the runs one after the other, together.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from equipoise.experiments.processes.attempt import LOCK, Means, forget_failures
from equipoise.experiments.processes.display import Display
from equipoise.experiments.processes.job import Job, failure, refuse_other_run
from equipoise.experiments.processes.local import Local
from equipoise.experiments.processes.locks import take
from equipoise.training import train


def run(jobs: Sequence[Job], *, workers: int = 1) -> dict[str, str]:
    """Bring every job to its end. Returns the errors of those that failed, by name."""
    for job in jobs:
        refuse_other_run(job)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return _together(jobs)
    threads = max(1, (os.cpu_count() or 1) // max(1, workers))
    engine = Local(workers, Means(threads=threads, keep_checkpoints=True, measure=True))
    forget_failures(jobs)
    with Display(sum(job.config.steps for job in jobs)) as display:
        engine.run(jobs, display)
    return {job.name: str(failure(job.folder)) for job in jobs if not job.finished}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder; another process that wants it is told so. Each run has a lock of its own,
    which its training keeps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = take(folder / LOCK)
    if descriptor is None:
        raise ValueError(
            f"another process is at work in {folder}: wait until it is done, or choose another "
            "folder"
        )
    try:
        yield
    finally:
        os.close(descriptor)


def _together(jobs: Sequence[Job]) -> dict[str, str]:
    """All ranks of torchrun make each run. A failure of one is fatal for all: ranks cannot agree on
    going on.
    """
    for job in jobs:
        train(replace(job.config, resume=True))
    return {}
