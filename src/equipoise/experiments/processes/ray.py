"""ray: trials on a Ray cluster. Ray finds a machine with enough CPUs and GPUs for each; the trial
itself runs as it does here.

The machines share the results folder and have equipoise installed. Each trial is a Ray task. When a
worker dies (killed, out of memory, its machine gone), its training stops too, after a checkpoint
where there was time for one (guard.py), and Ray starts the task again elsewhere, where it
continues. Trials are found busy or ended by their locks and files, as everywhere, so that two
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

from equipoise.experiments.processes.attempt import (
    MAX_TRIES,
    Attempt,
    AttemptOutcome,
    begin_attempt,
    outcome_of,
)
from equipoise.experiments.processes.display import Display
from equipoise.experiments.processes.guard import STOP_SECONDS
from equipoise.experiments.processes.job import AttemptOptions, Work, record_failure
from equipoise.experiments.processes.local import STOPPED_MESSAGE
from equipoise.storage.optional import import_optional
from equipoise.training.stopping import Stopped, StopSignals

TASK_POLL_SECONDS = 0.5
RESUBMIT_SECONDS = 2.0
"""until a trial that another process has is asked for again"""
CANCEL_SECONDS = STOP_SECONDS + 10
"""for last checkpoints, a little more than a guard gives"""


class RayEngine:
    """An engine on the cluster at `address`; None is that of $RAY_ADDRESS, or one of this machine
    alone.
    """

    def __init__(
        self, address: str | None, cpus: float, gpus: float, options: AttemptOptions
    ) -> None:
        if cpus < 0 or gpus < 0 or cpus + gpus == 0:
            raise ValueError(f"a trial needs CPUs or GPUs, not {cpus:g} and {gpus:g}")
        self.address, self.cpus, self.gpus, self.options = address, cpus, gpus, options

    def run(self, jobs: Sequence[Work], display: Display) -> None:
        """Until every job is finished or failed. Raises Stopped as the local engine does."""
        ray = import_optional("ray", extra="ray")
        ours = not ray.is_initialized()
        if ours:
            connect_to_cluster(ray, self.address)
        try:
            # Ray prints lines of its own to standard output, such as that a node has died: they
            # would stand in the middle of what --json prints there
            with contextlib.redirect_stdout(sys.stderr):
                self._run_tasks(ray, jobs, display)
        finally:
            if ours:
                ray.shutdown()

    def _run_tasks(self, ray: ModuleType, jobs: Sequence[Work], display: Display) -> None:
        self._check_room(ray, display)
        needs = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": MAX_TRIES - 1}
        remote = ray.remote(**needs)(attempt_on_worker)
        _RayTasks(ray, remote, self.options, display).run(jobs)

    def _check_room(self, ray: ModuleType, display: Display) -> None:
        """A trial that fits nowhere would wait for ever, and nobody would know why."""
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


class _RayTasks:
    """The trials as tasks: all submitted at once, collected as they end."""

    def __init__(
        self, ray: ModuleType, remote: Any, options: AttemptOptions, display: Display
    ) -> None:
        self.ray, self.remote, self.options, self.display = ray, remote, options, display
        self.tasks: dict[Any, Work] = {}
        self.busy: dict[str, tuple[float, Work]] = {}
        self.seen: dict[str, int] = {}

    def run(self, jobs: Sequence[Work]) -> None:
        with StopSignals() as signals:
            try:
                for job in jobs:
                    self._submit(job)
                while self.tasks or self.busy:
                    self._collect_ended()
                    self._resubmit_busy()
                    self._show_progress()
                    if signals.received:
                        raise Stopped(STOPPED_MESSAGE, signals.received)
            finally:
                self._cancel_tasks()

    def _submit(self, job: Work) -> None:
        self.tasks[self.remote.remote(job, self.options, os.getcwd())] = job

    def _collect_ended(self) -> None:
        if not self.tasks:
            time.sleep(TASK_POLL_SECONDS)
            return
        done, _ = self.ray.wait(list(self.tasks), num_returns=1, timeout=TASK_POLL_SECONDS)
        for task in done:
            job = self.tasks.pop(task)
            if self._outcome(task, job) == "busy":
                self.busy[job.name] = (time.monotonic(), job)
                self.display.note(f"{len(self.busy)} in other processes")
            else:
                self.display.ended(job)

    def _outcome(self, task: Any, job: Work) -> AttemptOutcome:
        try:
            outcome = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            # Ray gave up: the worker died again and again, or never started
            if not (found := outcome_of(job)):
                reason = " ".join(str(error).split())
                record_failure(job.folder, f"{reason} (tried {MAX_TRIES} times)")
            return found or "failed"
        if outcome != "busy" and not outcome_of(job):
            raise ValueError(
                f"{job.name} {outcome} on another machine, and {job.folder} does not show it "
                "here: the results folder must be on a file system that all machines share"
            )
        return outcome

    def _resubmit_busy(self) -> None:
        for name, (since, job) in list(self.busy.items()):
            if time.monotonic() - since > RESUBMIT_SECONDS:
                del self.busy[name]
                self._submit(job)

    def _show_progress(self) -> None:
        """Ray does not say which task has begun; the trials' own files do, once they change."""
        for job in self.tasks.values():
            step, _ = job.progress() or (0, "")
            if step != self.seen.setdefault(job.name, step):
                self.display.watch(job)

    def _cancel_tasks(self) -> None:
        """Tasks that wait are dropped; those that run write a checkpoint."""
        for task in self.tasks:
            self.ray.cancel(task, force=False)
        if self.tasks:
            self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=CANCEL_SECONDS)


def connect_to_cluster(ray: ModuleType, address: str | None) -> None:
    """An error here names the cluster; Ray's own is a page long."""
    here: dict[str, Any] = {}
    if address is None and "RAY_ADDRESS" not in os.environ:
        # a cluster that we start sends nothing to anybody
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        here = {"include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **here)
    except Exception as error:  # Ray raises plain ones when a cluster does not start in time
        raise ValueError(
            f"no Ray cluster at {address or 'this machine'}: {' '.join(str(error).split())}"
        ) from None


def attempt_on_worker(job: Work, options: AttemptOptions, folder: str) -> AttemptOutcome:
    """What a Ray worker does. `folder`: what relative paths of the grid are relative to."""
    if not Path(folder).is_dir():
        raise ValueError(f"{platform.node()} has no folder {folder}: all machines must share it")
    os.chdir(folder)
    # Ray cancels by SIGINT, which is ignored where the cluster runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = begin_attempt(job, options)
    if not isinstance(begun, Attempt):
        return begun
    try:
        return begun.wait()
    except KeyboardInterrupt:
        begun.stop()
        raise
