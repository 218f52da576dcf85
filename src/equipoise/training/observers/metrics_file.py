"""metrics.jsonl: a line for every step and every evaluation. results/run.py has the type of each
line and reads them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypedDict

from equipoise.results.run import EvaluationMetrics, LayerMetrics, StepMetrics, read_metrics
from equipoise.storage.atomic import write_text
from equipoise.training.evaluation import Validation, combine_idle_shares
from equipoise.training.observers.base import Observer
from equipoise.training.trainer import TrainingStep


class LevelSummary(TypedDict):
    """How uneven the loads are: means over layers, as the paper reports them, and each layer's."""

    imbalance: float
    max_violation: float
    layers: LayerMetrics


class MetricsFile(Observer):
    """Appends to metrics.jsonl."""

    def __init__(self, path: Path, tokens_per_step: int) -> None:
        self.path, self.tokens_per_step = path, tokens_per_step

    def resumed(self, step: int) -> None:
        kept = [row for row in read_metrics(self.path) if row["step"] <= step]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = self.path.open("a", encoding="utf-8")

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
                **summarise_levels(
                    [layer.imbalance for layer in step.layers],
                    [layer.max_violation for layer in step.layers],
                ),
            }
        )

    def evaluated(self, step: int, measured: Validation) -> None:
        self._add_row(
            {
                "kind": "validation",
                "step": step,
                "loss": measured.loss,
                **summarise_levels(measured.imbalance, measured.max_violation),
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


def summarise_levels(imbalance: list[float], max_violation: list[float]) -> LevelSummary:
    """From the figures of each MoE layer. A model without such layers has levels of 0."""
    layers = max(1, len(imbalance))
    return {
        "imbalance": sum(imbalance) / layers,
        "max_violation": sum(max_violation) / layers,
        "layers": {"imbalance": imbalance, "max_violation": max_violation},
    }
