"""local: trials on this machine, one after the other or some at once.

Another sweep may be at work in the same folder. What it has taken is left to it, and looked at
again: if it dies, its trials are free at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from equipoise.experiments.processes.attempt import POLL, Attempt, Means, begin
from equipoise.experiments.processes.display import Display
from equipoise.experiments.processes.job import Job
from equipoise.training.stopping import Stopped, StopSignals

LOOK_AGAIN = 1.0  # seconds between looks at trials that somebody else has


class Local:
    """An engine with `workers` trials side by side."""

    def __init__(self, workers: int, means: Means) -> None:
        if workers < 1:
            raise ValueError(f"at least one trial at once, not {workers}")
        self.workers, self.means = workers, means

    def run(self, jobs: Sequence[Job], display: Display) -> None:
        """Until every job is finished or failed, by us or by somebody else.

        Raises:
            Stopped: when SIGTERM or Ctrl-C asked for it, after the running ones wrote a checkpoint.
        """
        self.waiting, self.running, self.display = list(jobs), list[Attempt](), display
        self._looked = 0.0
        with StopSignals() as signals:
            try:
                while self.waiting or self.running:
                    self._fill()
                    time.sleep(POLL)
                    self._look()
                    if signals.received:
                        raise Stopped(
                            "stopped. The same command goes on where it was", signals.received
                        )
            finally:
                self._stop()

    def _fill(self) -> None:
        if len(self.running) >= self.workers or time.monotonic() - self._looked < LOOK_AGAIN:
            return
        for job in list(self.waiting):
            if len(self.running) >= self.workers:
                return
            begun = begin(job, self.means)
            if begun == "busy":
                continue
            self.waiting.remove(job)
            if isinstance(begun, Attempt):
                self.running.append(begun)
                self.display.started(job.name, job.config.steps)
            else:
                self.display.ended(job.name, job.folder)
        if self.waiting:  # all of them are somebody else's
            self._looked = time.monotonic()
            self.display.note(f"{len(self.waiting)} with somebody else")

    def _look(self) -> None:
        for attempt in list(self.running):
            job = attempt.job
            self.display.watch(job.name, job.folder)
            if attempt.poll() is not None:
                self.running.remove(attempt)
                self._looked = 0.0
                self.display.ended(job.name, job.folder)

    def _stop(self) -> None:
        for attempt in self.running:
            attempt.ask_to_stop()
        for attempt in self.running:
            attempt.stop()
