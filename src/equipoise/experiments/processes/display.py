"""One display for many jobs: a bar over all steps, one for each job that runs, and a line for each
that ends.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from equipoise.experiments.processes.job import Work
from equipoise.results.run import load_failure
from equipoise.storage.optional import import_optional


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

    def started(self, job: Work) -> None:
        self._tasks[job.name] = self._bars.add_task(job.name, total=job.steps, about="starting")

    def watch(self, job: Work) -> None:
        """Show how far it is; it need not have been announced by `started`."""
        if job.name not in self._tasks:
            self.started(job)
        if progress := job.progress():
            steps, about = progress
            self._bars.update(self._tasks[job.name], completed=steps, about=about)
            self._count_steps(job.name, steps)

    def ended(self, job: Work) -> None:
        """Finished or failed: its folder says which."""
        if job.finished:
            self._count_steps(job.name, job.steps)
            self._end(job.name, f"{job.name}: {job.result_line()}")
        else:
            self._end(job.name, f"{job.name}: FAILED. {load_failure(job.folder)}")

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
