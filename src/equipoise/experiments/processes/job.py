"""job: one training of many, known by its folder: whether it has finished, failed, or belongs to
other settings.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from equipoise.results.run import FAILURE_FILE, is_finished
from equipoise.storage.atomic import write_json
from equipoise.training.config import Config, read_config
from equipoise.training.settings import describe_differences, refuse_other_settings

ERRORS_FILE = "errors.txt"
"""the error stream of a training that was started here"""
SHOWN_ERROR_LINES = 12


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
