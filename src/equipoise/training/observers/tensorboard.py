"""TensorBoard: loss and balance for that viewer, and every IMAGE_EVERY steps a picture of all
loads.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from torch import Tensor

from equipoise.model import ModelConfig
from equipoise.storage.optional import import_optional
from equipoise.tracking import (
    LayerBalance,
    balance_levels,
    load_picture,
    send_balance,
    switched_share,
)
from equipoise.training.evaluation import Validation, target_weights
from equipoise.training.observers.base import Observer
from equipoise.training.trainer import LayerStep, Trainer, TrainingStep

IMAGE_EVERY = 50
SWITCH_TOKENS = 256
"""of the scores that a step kept, for the share of switched tokens"""


class TensorBoard(Observer):
    """Writes TensorBoard's event files."""

    def __init__(self, folder: Path, trainer: Trainer) -> None:
        self.folder, self.model = folder, trainer.config.model
        # a config has one target for all layers
        rules = trainer.balancers.values()
        self.target = next((target_weights(each) for each in rules), None)
        self.last_step = trainer.config.steps

    def resumed(self, step: int) -> None:
        import_optional("tensorboard", extra="tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.folder), purge_step=step + 1)

    def stepped(self, step: TrainingStep, seconds: float) -> None:
        self._writer.add_scalar("train/loss", step.loss, step.number)
        if not step.layers:
            return
        layers = {each.name: _layer_balance(each, self.model, self.target) for each in step.layers}
        levels = {f"balance/{name}": value for name, value in balance_levels(layers).items()}
        due = step.number % IMAGE_EVERY == 0 or step.number in (1, self.last_step)
        picture = load_picture(layers, step.number, "balance") if due else None
        send_balance(self._writer, levels, step.number, picture)

    def evaluated(self, step: int, measured: Validation) -> None:
        found = {"loss": measured.loss, "floor": measured.floor}
        if measured.layers:
            found["imbalance"] = sum(measured.imbalance) / len(measured.imbalance)
        for name, value in found.items():
            if value is not None:
                self._writer.add_scalar(f"validation/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


def _layer_balance(step: LayerStep, model: ModelConfig, target: Tensor | None) -> LayerBalance:
    switched = None
    if step.scores is not None:
        some = step.scores[:: max(1, -(-len(step.scores) // SWITCH_TOKENS))]
        switched = switched_share(some, model.top_k, step.shift, step.shift_after)
    return LayerBalance(step.loads, model.top_k, target, step.idle_share, switched)


def tensorboard_folder(log_to: str, run: Path) -> Path | None:
    """Where event files go by the setting `log_to`; None: nowhere.

    "auto" is the run's own folder, if the package is there; asked for by name it must be.
    """
    kind, _, folder = log_to.partition(":")
    if kind == "none" or (kind == "auto" and not has_tensorboard()):
        return None
    return Path(folder).expanduser() if folder else run / "tensorboard"


def has_tensorboard() -> bool:
    return importlib.util.find_spec("tensorboard") is not None
