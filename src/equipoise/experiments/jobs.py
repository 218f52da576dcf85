"""jobs: many trainings, some at once, each in a process of its own.

A run that has its result.json is not repeated; one that was cut goes on from its checkpoint; one that fails is recorded in
failure.json beside its other files and does not stop the rest. Asked to stop (Ctrl-C, SIGTERM), all running ones write a
checkpoint first. One process at a time works in a folder: its lock is inherited by the trainings, so that it is held as long as
any of them lives, even if the one who started them was killed.

Started by torchrun, all ranks train the runs one after the other, together.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.experiments.display import Display
from equipoise.experiments.locks import take
from equipoise.training import Stopped, train
from equipoise.training.checkpoint import MAY_CHANGE
from equipoise.training.config import Config, differences, read, write_yaml
from equipoise.training.files import write_json, write_text
from equipoise.training.stopping import StopSignals

POLL = 0.25  # seconds between looks at the running ones
LAST_LINES = 12


@dataclass(frozen=True)
class Job:
    """A training with a name to show. Its folder is config.out."""

    name: str
    config: Config

    @property
    def folder(self) -> Path:
        return Path(self.config.out)

    @property
    def finished(self) -> bool:
        return (self.folder / "result.json").exists()


def run(jobs: Sequence[Job], *, at_once: int = 1) -> dict[str, str]:
    """Bring every job to its end. Returns the errors of those that failed, by name."""
    if at_once < 1:
        raise ValueError(f"at least one run at once, not {at_once}")
    for job in jobs:
        refuse_another(job)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return _together(jobs)
    with Display(sum(job.config.steps for job in jobs)) as display:
        return _Pool(jobs, at_once, display).run()


def refuse_another(job: Job) -> None:
    """A folder with a run of other settings is neither taken for this one nor overwritten."""
    path = job.folder / "config.yaml"
    if not path.exists():
        return
    found = differences(read(path).to_dict(), job.config.to_dict())
    if differ := {name: pair for name, pair in found.items() if name not in MAY_CHANGE}:
        lines = "".join(f"\n  {name}: {old!r} there, {new!r} here" for name, (old, new) in differ.items())
        raise ValueError(
            f"{job.folder} holds a run with other settings:{lines}\nChoose another folder, or delete that one"
        )


def failure(folder: Path) -> str | None:
    """Why a run failed, if it did."""
    path = folder / "failure.json"
    return json.loads(path.read_text(encoding="utf-8"))["error"] if path.exists() else None


def record_failure(folder: Path, error: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "failure.json", {"error": error})


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder; another process that wants it is told so. Children inherit the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = take(folder / ".lock")
    if descriptor is None:
        raise ValueError(f"another process is at work in {folder}: wait until it is done, or choose another folder")
    try:
        os.set_inheritable(descriptor, True)
        yield
    finally:
        os.close(descriptor)


def _together(jobs: Sequence[Job]) -> dict[str, str]:
    """All ranks of torchrun make each run. A failure of one is fatal for all: ranks cannot agree on going on."""
    for job in jobs:
        train(replace(job.config, resume=True))
    return {}


class _Pool:
    """The running processes."""

    def __init__(self, jobs: Sequence[Job], at_once: int, display: Display) -> None:
        self.waiting = [job for job in jobs if not job.finished]
        self.at_once, self.display = at_once, display
        self.running: list[tuple[Job, subprocess.Popen[bytes]]] = []
        self.failed: dict[str, str] = {}
        for job in jobs:
            if job.finished:
                display.finished(job.name, job.folder)

    def run(self) -> dict[str, str]:
        with StopSignals() as signals:
            try:
                while self.waiting or self.running:
                    self._fill()
                    time.sleep(POLL)
                    self._look()
                    if signals.received:
                        raise Stopped("stopped. The same command goes on where it was", signals.received)
            finally:
                self._stop()
        return self.failed

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.at_once:
            job = self.waiting.pop(0)
            (job.folder / "failure.json").unlink(missing_ok=True)
            self.running.append((job, start(job, threads=max(1, (os.cpu_count() or 1) // self.at_once))))
            self.display.started(job.name, job.config.steps)

    def _look(self) -> None:
        for job, process in list(self.running):
            self.display.watch(job.name, job.folder)
            if process.poll() is None:
                continue
            self.running.remove((job, process))
            if job.finished:
                self.display.finished(job.name, job.folder)
            elif process.returncode not in (128 + signal.SIGTERM, 128 + signal.SIGINT):
                self.failed[job.name] = why(job.folder, process.returncode)
                record_failure(job.folder, self.failed[job.name])
                self.display.failed(job.name, self.failed[job.name])
            else:
                self.waiting.append(job)  # it was stopped by someone, and can go on

    def _stop(self) -> None:
        for _, process in self.running:
            process.terminate()
        for _, process in self.running:
            process.wait()


def start(job: Job, *, threads: int) -> subprocess.Popen[bytes]:
    """A training in a process of its own, which resumes what is there. Its errors go to errors.txt in the run's folder."""
    job.folder.mkdir(parents=True, exist_ok=True)
    write_text(job.folder / "wanted.yaml", write_yaml(replace(job.config, resume=True)))
    command = [sys.executable, "-m", "equipoise", "train", "--config", str(job.folder / "wanted.yaml")]
    with (job.folder / "errors.txt").open("wb") as errors:
        return subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            close_fds=False,  # the folder's lock goes along
            start_new_session=os.name != "nt",  # Ctrl-C is for us; we tell them
        )


def why(folder: Path, code: int) -> str:
    """The last words of a run that failed."""
    path = folder / "errors.txt"
    said = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return "\n".join([*said.splitlines()[-LAST_LINES:], f"({ended})"])
