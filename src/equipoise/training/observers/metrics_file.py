"""metrics.jsonl: a line for every step and every evaluation. results/run.py has the type of each
line and reads them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from equipoise.results.run import EvaluationMetrics, StepMetrics, scan_metrics, summarise_levels
from equipoise.storage.atomic import write_text
from equipoise.training.evaluation import Validation, combine_idle_shares
from equipoise.training.observers.base import Observer
from equipoise.training.trainer import TrainingStep


class MetricsFile(Observer):
    """Appends to metrics.jsonl."""

    def __init__(self, path: Path, tokens_per_step: int) -> None:
        self.path, self.tokens_per_step = path, tokens_per_step

    def resumed(self, step: int) -> None:
        kept = self._rows_until(step)
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = self.path.open("a", encoding="utf-8")

    def _rows_until(self, step: int) -> list[StepMetrics | EvaluationMetrics]:
        """The rows that stay. A damaged line among them is refused, since means over the training
        would change; what follows them may be of any kind, since a crash may have cut it.
        """
        lines = list(scan_metrics(self.path))
        kept = [(number, row) for number, row in lines if row is not None and row["step"] <= step]
        last, reached = (kept[-1][0], kept[-1][1]["step"]) if kept else (0, 0)
        # behind the last row that stays, damage matters only if rows are missing by it
        damaged = [n for n, row in lines if row is None and (n < last or reached < step)]
        if damaged:
            raise ValueError(
                f"{self.path}, line {damaged[0]} is damaged: it is not a row of metrics. Restore "
                "the file from a copy, or delete that line to continue without it"
            )
        return [row for _, row in kept]

    def stepped(self, step: TrainingStep, seconds: float) -> None:
        self._add_row(
            {
                "kind": "train",
                "step": step.number,
                "loss": step.loss,
                "penalty": step.penalty,
                "gradient_norm": step.gradient_norm,
                "learning_rate": step.learning_rate,
                "tokens": step.number * self.tokens_per_step,
                "tokens_per_second": round(self.tokens_per_step / seconds, 1),
                "idle_share": combine_idle_shares(layer.idle_share for layer in step.layers),
                **summarise_levels([layer.levels for layer in step.layers]),
            }
        )

    def evaluated(self, step: int, measured: Validation) -> None:
        self._add_row(
            {
                "kind": "validation",
                "step": step,
                "loss": measured.loss,
                **summarise_levels(measured.layers),
                "imbalance_error": measured.imbalance_error,
                "floor": measured.floor,
                "sequences": measured.sequences,
            }
        )

    def saving(self, step: int) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _add_row(self, row: StepMetrics | EvaluationMetrics) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
