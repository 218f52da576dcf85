"""What a person sees: on a terminal a bar with loss, imbalance, speed and time left; elsewhere
see log_lines.py.
"""

from __future__ import annotations

import sys

from equipoise.results.run import summarise_levels
from equipoise.storage.optional import import_optional
from equipoise.training.evaluation import Validation
from equipoise.training.observers.base import Observer
from equipoise.training.observers.log_lines import evaluation_line
from equipoise.training.trainer import TrainingStep


def on_a_terminal() -> bool:
    return sys.stderr.isatty()


class ProgressBar(Observer):
    """A rich progress bar on the terminal's error stream, so that output can be piped."""

    def __init__(self, steps: int, tokens_per_step: int) -> None:
        import_optional("rich", extra="train")
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.console = Console(stderr=True, highlight=False)
        self._tokens = tokens_per_step
        self._bar = Bar(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(
                "loss {task.fields[loss]}  imbalance {task.fields[imbalance]}  "
                "{task.fields[speed]} tokens/s"
            ),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._task = self._bar.add_task("training", total=steps, loss="-", imbalance="-", speed="-")

    def resumed(self, step: int) -> None:
        self._bar.start()
        self._bar.update(self._task, completed=step)

    def stepped(self, step: TrainingStep, seconds: float) -> None:
        level = summarise_levels([layer.levels for layer in step.layers])["imbalance"]
        self._bar.update(
            self._task,
            completed=step.number,
            loss=f"{step.loss:.3f}",
            imbalance=f"{level:.3f}",
            speed=f"{self._tokens / seconds:,.0f}",
        )

    def evaluated(self, step: int, measured: Validation) -> None:
        self.console.print(evaluation_line(step, measured))

    def close(self) -> None:
        self._bar.stop()
