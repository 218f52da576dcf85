"""One display for many trainings: a bar over all steps, one for each training that runs, and a line
for each that ends.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from equipoise.results.run import (
    METRICS_FILE,
    StepMetrics,
    is_finished,
    load_failure,
    load_result,
)
from equipoise.storage.optional import import_optional

LAST_BYTES = 65536
"""read from the end of metrics.jsonl: more than one line, however many layers there are"""


class Display:
    """Writes to the error stream, so that output can be piped. Where that is no terminal, only the
    lines are printed.
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
        """Show how far it is. `steps` is for one that was not announced by `started`."""
        if name not in self._tasks:
            self.started(name, steps)
        if row := read_last_step(folder):
            about = f"loss {row['loss']:.3f}  imbalance {row['imbalance']:.3f}"
            self._bars.update(self._tasks[name], completed=row["step"], about=about)
            self._count_steps(name, row["step"])

    def finished(self, name: str, folder: Path) -> None:
        result = load_result(folder)
        self._count_steps(name, result["steps"])
        self._end(
            name,
            f"{name}: validation loss {result['validation_loss']:.4f}, imbalance "
            f"{result['imbalance']:.4f}, {result['seconds']:.0f} s",
        )

    def failed(self, name: str, error: str) -> None:
        self._end(name, f"{name}: FAILED. {error}")

    def ended(self, name: str, folder: Path) -> None:
        """Finished or failed: its folder says which."""
        if is_finished(folder):
            self.finished(name, folder)
        else:
            self.failed(name, str(load_failure(folder)))

    def note(self, text: str) -> None:
        """Beside the bar over all."""
        self._bars.update(self._all, about=text)

    def say(self, line: str) -> None:
        self._console.print(line)

    def _count_steps(self, name: str, steps: int) -> None:
        self._steps[name] = steps
        self._bars.update(self._all, completed=sum(self._steps.values()))

    def _end(self, name: str, line: str) -> None:
        if name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))
        self._console.print(line)


def read_last_step(folder: Path) -> StepMetrics | None:
    """The newest step of a run, from the end of its metrics.jsonl; None before the first one."""
    path = folder / METRICS_FILE
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        # not JSON: a line that is being written, or the one cut by the seek
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and row.get("kind") == "train":
                return cast(StepMetrics, row)
    return None
