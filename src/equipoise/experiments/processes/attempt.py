"""attempt: one training brought to its end by whoever holds its lock. Both engines do the same,
here.

A trial is begun by taking the lock in its folder; who does not get it leaves the trial to the one
who has it. Its training is a process of its own (torchrun, if it needs several), under a guard
(guard.py). A training that was killed or stopped from outside is started again and goes on from its
checkpoint, three times in all; one that ends with an error is not, since it would end so again.
Either is written to failure.json.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from equipoise.experiments.processes import guard
from equipoise.experiments.processes.job import Job, failure, record_failure, why
from equipoise.experiments.processes.locks import take
from equipoise.storage.atomic import write_text
from equipoise.training.config import write_yaml

Outcome = Literal["finished", "failed", "busy"]
TRIES = 3
POLL = 0.25  # seconds between looks at what is running
LOCK = ".lock"


@dataclass(frozen=True)
class Means:
    """What a trial runs with."""

    processes: int = 1
    """more than one: under torchrun"""
    threads: int = 1
    """of each process, unless OMP_NUM_THREADS says otherwise"""
    keep_checkpoints: bool = False
    """a finished trial's checkpoint is deleted otherwise: 216 of the 1B model are terabytes"""
    measure: bool = False
    """measure it when it is finished, in its own process (with one process only): measuring then
    runs beside other trials
    """


def ended(job: Job) -> Outcome | None:
    if job.finished:
        return "finished"
    return "failed" if failure(job.folder) is not None else None


def forget_failures(jobs: Iterable[Job]) -> None:
    """So that they are tried again; not those that somebody else is at."""
    for job in jobs:
        if ended(job) == "failed" and (lock := take(job.folder / LOCK)) is not None:
            (job.folder / "failure.json").unlink(missing_ok=True)
            os.close(lock)


def begin(job: Job, means: Means) -> Attempt | Outcome:
    """Start the trial, or say why not: it has ended, or somebody else is at it."""
    if outcome := ended(job):
        return outcome
    job.folder.mkdir(parents=True, exist_ok=True)
    lock = take(job.folder / LOCK)
    if lock is None:
        return "busy"
    if outcome := ended(job):  # while we were about to take the lock
        os.close(lock)
        return outcome
    return Attempt(job, means, lock)


class Attempt:
    """A trial that is running, and whose lock we hold."""

    def __init__(self, job: Job, means: Means, lock: int) -> None:
        self.job, self.means, self.tries = job, means, 0
        self.lock: int | None = lock
        try:
            write_text(job.folder / "wanted.yaml", write_yaml(replace(job.config, resume=True)))
            self._start()
        except BaseException:
            os.close(lock)
            raise

    def poll(self) -> Outcome | None:
        """How it ended, or None while it has not. A training that was killed is started again."""
        if self.lock is None:
            return self._take_again()
        code = self.process.poll()
        if code is None:
            return None
        if (
            code < 0
        ):  # the guard was killed: its training is told, and has the lock until it has left
            self._let_go()
            return None
        if not self.job.finished and killed(self.job.folder, code) and self.tries < TRIES:
            self._start()
            return None
        outcome = self._conclude(code)
        self.stop()
        return outcome

    def wait(self) -> Outcome:
        while (outcome := self.poll()) is None:
            time.sleep(POLL)
        return outcome

    def ask_to_stop(self) -> None:
        """Have it write a checkpoint and leave."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def stop(self) -> None:
        self.ask_to_stop()
        self.process.wait()
        self._let_go()

    def _let_go(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def _take_again(self) -> Outcome | None:
        self.lock = take(self.job.folder / LOCK)
        if self.lock is None:
            return None
        if not ended(self.job) and self.tries < TRIES:
            self._start()
            return None
        outcome = ended(self.job) or self._conclude(-signal.SIGKILL)
        self.stop()
        return outcome

    def _start(self) -> None:
        assert self.lock is not None
        self.tries += 1
        wanted = self.job.folder / "wanted.yaml"
        with (self.job.folder / "errors.txt").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, guard.__file__, str(self.lock), *command(wanted, self.means)],
                env=environment(os.environ, self.means.threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(self.lock,) if guard.POSIX else (),
                # Ctrl-C is for us; the guard hears of it by its standard input
                start_new_session=guard.POSIX,
            )

    def _conclude(self, code: int) -> Outcome:
        if self.job.finished:
            if not self.means.keep_checkpoints:
                shutil.rmtree(self.job.folder / "checkpoints", ignore_errors=True)
            return "finished"
        times = f", {self.tries} times" if self.tries > 1 else ""
        record_failure(
            self.job.folder, why(self.job.folder, 128 - code if code > 128 else code) + times
        )
        return "failed"


def command(wanted: Path, means: Means) -> list[str]:
    train = ["-m", "equipoise", "train", "--config", str(wanted)]
    if means.processes > 1:
        ranks = f"--nproc-per-node={means.processes}"
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", ranks, *train]
    return [sys.executable, *train, *(["--measure"] if means.measure else [])]


def environment(now: Mapping[str, str], threads: int) -> dict[str, str]:
    """A training is no part of a torchrun that may have started us."""
    ours = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    kept = {name: value for name, value in now.items() if name not in ours}
    number = now.get("OMP_NUM_THREADS", str(threads))
    return {"NUMBA_NUM_THREADS": number, **kept, "OMP_NUM_THREADS": number}


def killed(folder: Path, code: int) -> bool:
    """Whether something outside ended it: a signal, or under torchrun a signal to one of its ranks."""
    if code > 128:
        return True
    path = folder / "errors.txt"
    return path.exists() and bool(
        re.search(r"exitcode\s*:\s*-\d+", path.read_text("utf-8", errors="replace"))
    )
