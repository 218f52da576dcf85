"""One display over many trainings: a bar over all steps, one for each running one, and a line for
each that ends.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any

from equipoise.storage.optional import import_optional


class Display:
    """On the error stream, so that output can be piped. Where that is no terminal, only the lines
    are printed.
    """

    def __init__(self, total_steps: int) -> None:
        import_optional("rich", extra="train")
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._console = Console(stderr=True, highlight=False, markup=False)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[about]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._all = self._bars.add_task("all runs", total=total_steps, about="")
        self._tasks: dict[str, Any] = {}
        self._steps: dict[str, int] = {}

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def started(self, name: str, steps: int) -> None:
        self._tasks[name] = self._bars.add_task(name, total=steps, about="starting")

    def watch(self, name: str, folder: Path, steps: int = 0) -> None:
        """How far it is. `steps`: for one that was not said to have started."""
        if name not in self._tasks:
            self.started(name, steps)
        if row := last_step(folder):
            about = f"loss {row['loss']:.3f}  imbalance {row['imbalance']:.3f}"
            self._bars.update(self._tasks[name], completed=row["step"], about=about)
            self._made(name, row["step"])

    def finished(self, name: str, folder: Path) -> None:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        self._made(name, result["steps"])
        self._end(
            name,
            f"{name}: validation loss {result['validation_loss']:.4f}, imbalance "
            f"{result['imbalance']:.4f}, "
            f"{result['seconds']:.0f} s",
        )

    def failed(self, name: str, error: str) -> None:
        self._end(name, f"{name}: FAILED. {error}")

    def ended(self, name: str, folder: Path) -> None:
        """Finished or failed: its folder says which."""
        if (folder / "result.json").exists():
            self.finished(name, folder)
        else:
            self.failed(
                name, json.loads((folder / "failure.json").read_text(encoding="utf-8"))["error"]
            )

    def note(self, text: str) -> None:
        """Beside the bar over all."""
        self._bars.update(self._all, about=text)

    def say(self, line: str) -> None:
        self._console.print(line)

    def _made(self, name: str, steps: int) -> None:
        self._steps[name] = steps
        self._bars.update(self._all, completed=sum(self._steps.values()))

    def _end(self, name: str, line: str) -> None:
        if name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))
        self._console.print(line)


def last_step(folder: Path) -> dict[str, Any]:
    """The newest training step of a run, or nothing yet."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65536))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # the line being written, or the one cut by the seek
            row = json.loads(line)
            if isinstance(row, dict) and row.get("kind") == "train":
                return row
    return {}
