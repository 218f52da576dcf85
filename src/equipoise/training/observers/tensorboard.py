"""tensorboard/: losses and imbalances for that viewer, if its package is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from equipoise.training.evaluation import Validation
from equipoise.training.observers.base import Observer
from equipoise.training.trainer import TrainingStep


class TensorBoard(Observer):
    """Writes TensorBoard's event files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resumed(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.folder), purge_step=step + 1)

    def stepped(self, step: TrainingStep, seconds: float) -> None:
        self._add(
            "train", step.number, step.loss, [layer.levels["imbalance"] for layer in step.layers]
        )

    def evaluated(self, step: int, measured: Validation) -> None:
        self._add("validation", step, measured.loss, measured.imbalance)

    def close(self) -> None:
        self._writer.close()

    def _add(self, kind: str, step: int, loss: float, imbalance: list[float]) -> None:
        self._writer.add_scalar(f"{kind}/loss", loss, step)
        for n, value in enumerate(imbalance):
            self._writer.add_scalar(f"{kind}/imbalance/{n}", value, step)


def has_tensorboard() -> bool:
    return importlib.util.find_spec("tensorboard") is not None
