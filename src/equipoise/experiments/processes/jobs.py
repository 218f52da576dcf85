"""jobs: many trainings, some at the same time, each in a process of its own.

A run that has its result.json is not repeated. One that was stopped continues from its checkpoint.
One that fails is recorded in failure.json beside its other files, does not stop the rest, and is
tried again the next time. When the caller is asked to stop (Ctrl-C, SIGTERM), or is killed, all
running trainings write a checkpoint first (guard.py).

Under torchrun all ranks train the runs together, one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from equipoise.experiments.processes.attempt import clear_failures
from equipoise.experiments.processes.display import Display
from equipoise.experiments.processes.job import AttemptOptions, Job, refuse_other_run
from equipoise.experiments.processes.local import LocalEngine
from equipoise.results.run import load_failure
from equipoise.training import train


def run_jobs(jobs: Sequence[Job], *, workers: int = 1) -> dict[str, str]:
    """Bring every job to its end. Returns the errors of those that failed, by name."""
    for job in jobs:
        refuse_other_run(job)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _train_on_all_ranks(jobs)
        return {}
    threads = max(1, (os.cpu_count() or 1) // max(1, workers))
    options = AttemptOptions(threads=threads, keep_checkpoints=True, measure=True)
    engine = LocalEngine(workers, options)
    clear_failures(jobs)
    with Display(sum(job.config.steps for job in jobs)) as display:
        engine.run(jobs, display)
    return {job.name: str(load_failure(job.folder)) for job in jobs if not job.finished}


def _train_on_all_ranks(jobs: Sequence[Job]) -> None:
    """Every rank makes each run with the others. A failure on one rank ends all of them: ranks
    cannot agree on going to the next run.
    """
    for job in jobs:
        train(replace(job.config, resume=True))
