"""job: one training of many, known by its folder: whether it has finished, failed, or belongs to
other settings.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path

from equipoise.storage.atomic import write_json
from equipoise.training.config import Config, read
from equipoise.training.settings import describe_differences, refuse_other_settings

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


def refuse_other_run(job: Job) -> None:
    """A folder with a run of other settings is neither taken for this one nor overwritten."""
    path = job.folder / "config.yaml"
    if path.exists():
        refuse_other_settings(
            f"{job.folder} holds a run with other settings",
            describe_differences(read(path).to_dict(), job.config.to_dict()),
            "Choose another folder, or delete that one",
        )


def failure(folder: Path) -> str | None:
    """Why a run failed, if it did."""
    path = folder / "failure.json"
    return json.loads(path.read_text(encoding="utf-8"))["error"] if path.exists() else None


def record_failure(folder: Path, error: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "failure.json", {"error": error})


def why(folder: Path, code: int) -> str:
    """The last words of a run that failed."""
    path = folder / "errors.txt"
    said = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return "\n".join([*said.splitlines()[-LAST_LINES:], f"({ended})"])
