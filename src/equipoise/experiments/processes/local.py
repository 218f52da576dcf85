"""local: trials on this machine, one after the other or some at the same time.

Another sweep may be at work in the same folder. The trials it has taken are left to it, and looked
at again: if it ends, its trials are free at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from equipoise.experiments.processes.attempt import (
    PROCESS_POLL_SECONDS,
    Attempt,
    begin_attempt,
)
from equipoise.experiments.processes.display import Display
from equipoise.experiments.processes.job import AttemptOptions, Work
from equipoise.training.stopping import Stopped, StopSignals

BUSY_POLL_SECONDS = 1.0
"""between looks at trials that another process has"""
STOPPED_MESSAGE = "stopped. The same command continues where it was stopped"


class LocalEngine:
    """An engine with `workers` trials side by side."""

    def __init__(self, workers: int, options: AttemptOptions) -> None:
        if workers < 1:
            raise ValueError(f"at least one trial at once, not {workers}")
        self.workers, self.options = workers, options

    def run(self, jobs: Sequence[Work], display: Display) -> None:
        """Until every job is finished or failed, here or in another process.

        Raises:
            Stopped: when SIGTERM or Ctrl-C asked for it, after the running ones wrote a checkpoint.
        """
        self.waiting, self.running, self.display = list(jobs), list[Attempt](), display
        self._looked = 0.0
        with StopSignals() as signals:
            try:
                while self.waiting or self.running:
                    self._start_waiting()
                    time.sleep(PROCESS_POLL_SECONDS)
                    self._poll_running()
                    if signals.received:
                        raise Stopped(STOPPED_MESSAGE, signals.received)
            finally:
                self._stop_all()

    def _start_waiting(self) -> None:
        """Fill the free workers with trials that no other process has."""
        too_soon = time.monotonic() - self._looked < BUSY_POLL_SECONDS
        if len(self.running) >= self.workers or too_soon:
            return
        for job in list(self.waiting):
            if len(self.running) >= self.workers:
                return
            begun = begin_attempt(job, self.options)
            if begun == "busy":
                continue
            self.waiting.remove(job)
            if isinstance(begun, Attempt):
                self.running.append(begun)
                self.display.started(job)
            else:
                self.display.ended(job)
        if self.waiting:
            # other processes have all of them
            self._looked = time.monotonic()
            self.display.note(f"{len(self.waiting)} in other processes")

    def _poll_running(self) -> None:
        for attempt in list(self.running):
            job = attempt.job
            self.display.watch(job)
            if attempt.poll() is not None:
                self.running.remove(attempt)
                self._looked = 0.0
                self.display.ended(job)

    def _stop_all(self) -> None:
        """Ask all first, so that they write their checkpoints at the same time."""
        for attempt in self.running:
            attempt.ask_to_stop()
        for attempt in self.running:
            attempt.stop()
