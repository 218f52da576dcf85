"""attempt: one training brought to its end by the process that holds its lock. Both engines use
this.

A trial begins when a process takes the lock in its folder; a process that does not get the lock
leaves the trial to the one that has it. The training is a process of its own (torchrun, if it needs
several), under a guard (guard.py). A training that was killed or stopped from outside is started
again and continues from its checkpoint, up to three times in all. One that ends with an error is
not, since it would end so again. Either way the reason is written to failure.json.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from equipoise.experiments.processes import guard
from equipoise.experiments.processes.job import (
    ERRORS_FILE,
    AttemptOptions,
    Work,
    explain_failure,
    record_failure,
)
from equipoise.results.run import FAILURE_FILE, load_failure
from equipoise.storage.locks import RUN_LOCK, take_lock

AttemptOutcome = Literal["finished", "failed", "busy"]
"""busy: another process has its lock"""
MAX_TRIES = 3
PROCESS_POLL_SECONDS = 0.25


def outcome_of(job: Work) -> AttemptOutcome | None:
    """How the job ended, as its folder shows; None if it has not."""
    if job.finished:
        return "finished"
    return "failed" if load_failure(job.folder) is not None else None


def clear_failures(jobs: Iterable[Work]) -> None:
    """Delete failure.json, so that failed jobs are tried again; not while another process is at
    one.
    """
    for job in jobs:
        failed = outcome_of(job) == "failed"
        if failed and (lock := take_lock(job.folder / RUN_LOCK)) is not None:
            (job.folder / FAILURE_FILE).unlink(missing_ok=True)
            os.close(lock)


def begin_attempt(job: Work, options: AttemptOptions) -> Attempt | AttemptOutcome:
    """Start the trial, or say why not: it has ended, or another process is at it."""
    if outcome := outcome_of(job):
        return outcome
    job.folder.mkdir(parents=True, exist_ok=True)
    lock = take_lock(job.folder / RUN_LOCK)
    if lock is None:
        return "busy"
    # again: it may have ended between the first look and the lock
    if outcome := outcome_of(job):
        os.close(lock)
        return outcome
    return Attempt(job, options, lock)


class Attempt:
    """A trial that is running, and whose lock we hold."""

    def __init__(self, job: Work, options: AttemptOptions, lock: int) -> None:
        self.job, self.options, self.tries = job, options, 0
        self.lock: int | None = lock
        try:
            job.prepare()
            self._start()
        except BaseException:
            os.close(lock)
            raise

    def poll(self) -> AttemptOutcome | None:
        """How it ended, or None while it has not. A training that was killed is started again."""
        if self.lock is None:
            return self._retake_lock()
        code = self.process.poll()
        if code is None:
            return None
        if code < 0:
            # The guard was killed. Its training is asked to stop, and keeps the lock until then.
            self._release_lock()
            return None
        if not self.job.finished and was_killed(self.job.folder, code) and self.tries < MAX_TRIES:
            self._start()
            return None
        outcome = self._conclude(code)
        self.stop()
        return outcome

    def wait(self) -> AttemptOutcome:
        while (outcome := self.poll()) is None:
            time.sleep(PROCESS_POLL_SECONDS)
        return outcome

    def ask_to_stop(self) -> None:
        """Have it write a checkpoint and leave."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def stop(self) -> None:
        """Wait until it has left, and release its lock."""
        self.ask_to_stop()
        self.process.wait()
        self._release_lock()

    def _release_lock(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def _retake_lock(self) -> AttemptOutcome | None:
        """After the guard was killed: once the training has left, start it again."""
        self.lock = take_lock(self.job.folder / RUN_LOCK)
        if self.lock is None:
            return None
        if not outcome_of(self.job) and self.tries < MAX_TRIES:
            self._start()
            return None
        outcome = outcome_of(self.job) or self._conclude(-signal.SIGKILL)
        self.stop()
        return outcome

    def _start(self) -> None:
        assert self.lock is not None
        self.tries += 1
        command = self.job.command(self.options)
        with (self.job.folder / ERRORS_FILE).open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, guard.__file__, str(self.lock), *command],
                env=training_environment(os.environ, self.options.threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(self.lock,) if guard.POSIX else (),
                # Ctrl-C is for us; the guard learns of it by its standard input
                start_new_session=guard.POSIX,
            )

    def _conclude(self, code: int) -> AttemptOutcome:
        if self.job.finished:
            if not self.options.keep_checkpoints:
                shutil.rmtree(self.job.folder / "checkpoints", ignore_errors=True)
            return "finished"
        times = f", {self.tries} times" if self.tries > 1 else ""
        reason = explain_failure(self.job.folder, 128 - code if code > 128 else code)
        record_failure(self.job.folder, reason + times)
        return "failed"


def training_environment(ours: Mapping[str, str], threads: int) -> dict[str, str]:
    """Our environment without torchrun's variables: a training is no rank of a torchrun that may
    have started us.
    """
    torchrun = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    kept = {name: value for name, value in ours.items() if name not in torchrun}
    number = ours.get("OMP_NUM_THREADS", str(threads))
    return {"NUMBA_NUM_THREADS": number, **kept, "OMP_NUM_THREADS": number}


def was_killed(folder: Path, code: int) -> bool:
    """Whether a signal ended it, or under torchrun a signal to one of its ranks."""
    if code > 128:
        return True
    path = folder / ERRORS_FILE
    return path.exists() and bool(
        re.search(r"exitcode\s*:\s*-\d+", path.read_text("utf-8", errors="replace"))
    )
