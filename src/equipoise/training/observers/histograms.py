"""histograms/: distributions of scores and shifts at chosen steps (the paper's figures 3 and 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from equipoise.storage.atomic import write_json
from equipoise.training.config import Config
from equipoise.training.observers.base import Observer
from equipoise.training.trainer import LayerStep, TrainingStep

BINS = 128


class LayerHistogram(TypedDict):
    """Counts of all scores in bins of equal width, and the shift of every expert."""

    scores: dict[str, Any]
    """from, to, counts"""
    shift: list[float]
    """so few numbers that they are kept as they are"""


class Histograms(Observer):
    """Writes histograms/step-*.json."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder, self.steps = folder, set(config.histogram_steps)

    def stepped(self, step: TrainingStep, seconds: float) -> None:
        if step.number not in self.steps:
            return
        self.folder.mkdir(exist_ok=True)
        layers = {layer.name: count_scores(layer) for layer in step.layers}
        write_json(
            self.folder / f"step-{step.number:08d}.json", {"step": step.number, "layers": layers}
        )


def count_scores(layer: LayerStep) -> LayerHistogram:
    """The histogram of a layer whose scores were kept."""
    assert layer.scores is not None
    highest = float(layer.scores.max())
    counts, edges = np.histogram(layer.scores.numpy(), BINS, range=(0, highest))
    return {
        "scores": {"from": 0.0, "to": float(edges[-1]), "counts": counts.tolist()},
        "shift": layer.shift.tolist(),
    }
