"""job: one piece of work of many, known by its folder: whether it has finished, failed, or belongs
to other settings. A training here; simulation/shard.py has another kind.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from equipoise.experiments.processes.last_step import read_last_step
from equipoise.results.run import FAILURE_FILE, is_finished, load_result
from equipoise.storage.atomic import write_json, write_text
from equipoise.training.config import Config, read_config, write_yaml
from equipoise.training.settings import describe_differences, refuse_other_settings

ERRORS_FILE = "errors.txt"
"""the error stream of a training that was started here"""
SHOWN_ERROR_LINES = 12


@dataclass(frozen=True)
class AttemptOptions:
    """What a job runs with, and what is kept of it."""

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


class Work(Protocol):
    """What the engines bring to its end: a command in a process of its own, and a folder that shows
    how far it is.
    """

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    @property
    def finished(self) -> bool: ...

    @property
    def steps(self) -> int:
        """That it has to make: the length of its bar."""
        ...

    def prepare(self) -> None:
        """Write what its command reads."""
        ...

    def command(self, options: AttemptOptions) -> list[str]: ...

    def progress(self) -> tuple[int, str] | None:
        """How many steps it has made, and a few words; None before the first."""
        ...

    def result_line(self) -> str:
        """What to say of it when it is finished."""
        ...


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
        return is_finished(self.folder)

    @property
    def steps(self) -> int:
        return self.config.steps

    @property
    def wanted(self) -> Path:
        """The config that its command reads."""
        return self.folder / "wanted.yaml"

    def prepare(self) -> None:
        write_text(self.wanted, write_yaml(replace(self.config, resume=True)))

    def command(self, options: AttemptOptions) -> list[str]:
        return training_command(self.wanted, options)

    def progress(self) -> tuple[int, str] | None:
        row = read_last_step(self.folder)
        return row and (row["step"], f"loss {row['loss']:.3f}  imbalance {row['imbalance']:.3f}")

    def result_line(self) -> str:
        result = load_result(self.folder)
        return (
            f"validation loss {result['validation_loss']:.4f}, imbalance "
            f"{result['imbalance']:.4f}, {result['seconds']:.0f} s"
        )


def training_command(wanted: Path, options: AttemptOptions) -> list[str]:
    """The command that trains by the config in `wanted`."""
    train = ["-m", "equipoise", "train", "--config", str(wanted)]
    if options.processes > 1:
        ranks = f"--nproc-per-node={options.processes}"
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", ranks, *train]
    return [sys.executable, *train, *(["--measure"] if options.measure else [])]


def refuse_other_run(job: Job) -> None:
    """A folder with a run of other settings is neither taken for this one nor overwritten."""
    path = job.folder / "config.yaml"
    if path.exists():
        refuse_other_settings(
            f"{job.folder} holds a run with other settings",
            describe_differences(read_config(path).to_dict(), job.config.to_dict()),
            "Choose another folder, or delete that one",
        )


def record_failure(folder: Path, error: str) -> None:
    """Write failure.json, which results.run.load_failure reads."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FAILURE_FILE, {"error": error})


def explain_failure(folder: Path, code: int) -> str:
    """The tail of errors.txt, and how the process ended: its exit code, or minus the signal."""
    path = folder / ERRORS_FILE
    text = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return "\n".join([*text.splitlines()[-SHOWN_ERROR_LINES:], f"({ending})"])
