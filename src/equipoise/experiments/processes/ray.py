"""ray: trials on a Ray cluster. Ray finds each a machine with its CPUs and GPUs; the trial itself
runs as it does here.

The machines share the results folder and have equipoise installed. Each trial is a Ray task. A
worker that dies (killed, out of memory, its machine gone) takes its training along, after a
checkpoint where there was time for one (guard.py), and Ray starts the task again elsewhere, where
it goes on. Trials are found busy or ended by their locks and files, as everywhere, so that two
sweeps share the work, whichever engines they use.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from equipoise.experiments.processes.attempt import TRIES, Attempt, Means, Outcome, begin, ended
from equipoise.experiments.processes.display import Display, last_step
from equipoise.experiments.processes.job import Job, record_failure
from equipoise.storage.optional import import_optional
from equipoise.training.stopping import Stopped, StopSignals

WAIT = 0.5  # seconds between looks
LOOK_AGAIN = 2.0  # seconds until a trial that somebody else has is asked for again
PATIENCE = 310.0  # seconds for last checkpoints, a little more than a guard has


class OnRay:
    """An engine on the cluster at `address`: that of $RAY_ADDRESS, or one of this machine alone, if
    None.
    """

    def __init__(self, address: str | None, cpus: float, gpus: float, means: Means) -> None:
        if cpus < 0 or gpus < 0 or cpus + gpus == 0:
            raise ValueError(f"a trial needs CPUs or GPUs, not {cpus:g} and {gpus:g}")
        self.address, self.cpus, self.gpus, self.means = address, cpus, gpus, means

    def run(self, jobs: Sequence[Job], display: Display) -> None:
        """Until every job is finished or failed. Raises Stopped as the local engine does."""
        ray = import_optional("ray", extra="ray")
        ours = not ray.is_initialized()
        if ours:
            connect(ray, self.address)
        try:
            # Ray prints lines of its own to standard output, such as that a node has died: they
            # would stand in the middle of what --json prints there
            with contextlib.redirect_stdout(sys.stderr):
                self._run_tasks(ray, jobs, display)
        finally:
            if ours:
                ray.shutdown()

    def _run_tasks(self, ray: ModuleType, jobs: Sequence[Job], display: Display) -> None:
        self._room(ray, display)
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": TRIES - 1}
        _Tasks(ray, ray.remote(**options)(attempt_here), self.means, display).run(jobs)

    def _room(self, ray: ModuleType, display: Display) -> None:
        """A trial that fits nowhere would wait without a word."""
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(
            each.get("CPU", 0) >= self.cpus and each.get("GPU", 0) >= self.gpus for each in machines
        ):
            return
        has = "; ".join(
            f"{each.get('CPU', 0):g} CPUs, {each.get('GPU', 0):g} GPUs" for each in machines
        )
        wanted = (
            f"no machine of the cluster has {self.cpus:g} CPUs and {self.gpus:g} GPUs for a "
            f"trial (there: {has})"
        )
        if self.address is None and "RAY_ADDRESS" not in os.environ:
            raise ValueError(f"{wanted}: ask for less, or name a cluster by --address")
        display.say(f"{wanted}: trials wait until one joins")


class _Tasks:
    """The trials as tasks: submitted all at once, looked at as they end."""

    def __init__(self, ray: ModuleType, remote: Any, means: Means, display: Display) -> None:
        self.ray, self.remote, self.means, self.display = ray, remote, means, display
        self.tasks: dict[Any, Job] = {}
        self.busy: dict[str, tuple[float, Job]] = {}
        self.seen: dict[str, int] = {}

    def run(self, jobs: Sequence[Job]) -> None:
        with StopSignals() as signals:
            try:
                for job in jobs:
                    self._submit(job)
                while self.tasks or self.busy:
                    self._collect()
                    self._ask_again()
                    self._watch()
                    if signals.received:
                        raise Stopped(
                            "stopped. The same command goes on where it was", signals.received
                        )
            finally:
                self._cancel()

    def _submit(self, job: Job) -> None:
        self.tasks[self.remote.remote(job, self.means, os.getcwd())] = job

    def _collect(self) -> None:
        if not self.tasks:
            time.sleep(WAIT)
            return
        done, _ = self.ray.wait(list(self.tasks), num_returns=1, timeout=WAIT)
        for task in done:
            job = self.tasks.pop(task)
            if self._outcome(task, job) == "busy":
                self.busy[job.name] = (time.monotonic(), job)
                self.display.note(f"{len(self.busy)} with somebody else")
            else:
                self.display.ended(job.name, job.folder)

    def _outcome(self, task: Any, job: Job) -> Outcome:
        try:
            outcome = self.ray.get(task)
        except (
            self.ray.exceptions.RayError
        ) as error:  # Ray gave up: the worker died again and again, or never started
            if not (found := ended(job)):
                record_failure(job.folder, f"{' '.join(str(error).split())} (tried {TRIES} times)")
            return found or "failed"
        if outcome != "busy" and not ended(job):
            raise ValueError(
                f"{job.name} {outcome} on another machine, and {job.folder} does not show it "
                "here: the results folder must be "
                "on a file system that all machines share"
            )
        return outcome

    def _ask_again(self) -> None:
        for name, (since, job) in list(self.busy.items()):
            if time.monotonic() - since > LOOK_AGAIN:
                del self.busy[name]
                self._submit(job)

    def _watch(self) -> None:
        """Ray does not say which task has begun; the trials' own files do, once they move."""
        for job in self.tasks.values():
            step = int(last_step(job.folder).get("step", 0))
            if step != self.seen.setdefault(job.name, step):
                self.display.watch(job.name, job.folder, job.config.steps)

    def _cancel(self) -> None:
        """Those that wait are dropped, those that run write a checkpoint."""
        for task in self.tasks:
            self.ray.cancel(task, force=False)
        if self.tasks:
            self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=PATIENCE)


def connect(ray: ModuleType, address: str | None) -> None:
    here: dict[str, Any] = {}
    if address is None and "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault(
            "RAY_USAGE_STATS_ENABLED", "0"
        )  # a cluster of ours sends nothing to anybody
        here = {"include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **here)
    except Exception as error:  # a plain one, when a cluster does not start in time
        raise ValueError(
            f"no Ray cluster at {address or 'this machine'}: {' '.join(str(error).split())}"
        ) from None


def attempt_here(job: Job, means: Means, folder: str) -> Outcome:
    """What a Ray worker does. `folder`: where paths of the grid begin."""
    if not Path(folder).is_dir():
        raise ValueError(f"{platform.node()} has no folder {folder}: all machines must share it")
    os.chdir(folder)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # Ray's way to cancel; ignored where the cluster runs in the background
    begun = begin(job, means)
    if not isinstance(begun, Attempt):
        return begun
    try:
        return begun.wait()
    except KeyboardInterrupt:
        begun.stop()
        raise
