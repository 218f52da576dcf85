"""Observers: what is written down while a training runs. They see steps and evaluations, and change
nothing.

Each has the same moments: resumed(step) before the first step, stepped, evaluated, saving(step)
before a checkpoint appears, and close. A run that was killed and resumed leaves the files that an
unbroken one would have left, but for times.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.balancing import Dual
from equipoise.balancing.shift.directions import LoadGap
from equipoise.results.run import read_metrics
from equipoise.storage.atomic import write_json, write_text
from equipoise.trace import TraceWriter
from equipoise.training.config import Config
from equipoise.training.evaluation import Validation, idle_together
from equipoise.training.trainer import Layer, Step, Trainer


class Observer:
    """The moments; each does nothing unless a subclass says so."""

    def resumed(self, step: int) -> None:
        """Training goes on after `step`, 0 for a new one: forget whatever was seen of later ones."""

    def stepped(self, step: Step, seconds: float) -> None: ...

    def evaluated(self, step: int, measured: Validation) -> None: ...

    def saving(self, step: int) -> None:
        """What was seen up to `step` must be on the disk before the checkpoint is."""

    def close(self) -> None: ...


class MetricsFile(Observer):
    """metrics.jsonl: a line for every step and every evaluation."""

    def __init__(self, path: Path, tokens_per_step: int) -> None:
        self.path, self.tokens_per_step = path, tokens_per_step

    def resumed(self, step: int) -> None:
        kept = [row for row in read_metrics(self.path) if row["step"] <= step]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = self.path.open("a", encoding="utf-8")

    def stepped(self, step: Step, seconds: float) -> None:
        self._add(
            {
                "kind": "train",
                "step": step.number,
                "loss": step.loss,
                "penalty": step.penalty,
                "gradient_norm": step.gradient_norm,
                "learning_rate": step.learning_rate,
                "tokens": step.number * self.tokens_per_step,
                "tokens_per_second": round(self.tokens_per_step / seconds, 1),
                "idle_share": idle_together(layer.idle_share for layer in step.layers),
                **summary(
                    [layer.imbalance for layer in step.layers],
                    [layer.max_violation for layer in step.layers],
                ),
            }
        )

    def evaluated(self, step: int, measured: Validation) -> None:
        levels = summary(measured.imbalance, measured.max_violation)
        chance = {
            name: getattr(measured, name) for name in ("imbalance_error", "floor", "sequences")
        }
        self._add({"kind": "validation", "step": step, "loss": measured.loss, **levels, **chance})

    def saving(self, step: int) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _add(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()


def summary(imbalance: list[float], max_violation: list[float]) -> dict[str, Any]:
    """Means over layers, as the paper reports them, and each layer's own."""
    layers = max(1, len(imbalance))
    return {
        "imbalance": sum(imbalance) / layers,
        "max_violation": sum(max_violation) / layers,
        "layers": {"imbalance": imbalance, "max_violation": max_violation},
    }


class TraceRecorder(Observer):
    """trace/: loads and shifts of every layer, which the theorems read (equipoise.trace)."""

    def __init__(self, folder: Path, trainer: Trainer) -> None:
        self.folder, self.config, self.trainer = folder, trainer.config, trainer

    def resumed(self, step: int) -> None:
        if (self.folder / "trace.json").exists():
            self._writer = TraceWriter.resume(self.folder, after=step)
            return
        config = self.config
        self._writer = TraceWriter(
            self.folder,
            top_k=config.model.top_k,
            layers=list(self.trainer.balancers),
            about={
                "gate": config.model.score,
                "balancer": config.balancer,
                "update_rate": config.update_rate,
                "balancer_options": config.balancer_options,
                "seed": config.seed,
            },
        )

    def stepped(self, step: Step, seconds: float) -> None:
        all_of_it = self.config.keeps_batch(step.number)
        if step.number % self.config.trace_every and not all_of_it:
            return
        for layer in step.layers:
            rows = (
                len(layer.scores)
                if all_of_it and layer.scores is not None
                else self.config.trace_scores
            )
            sample = _spread(layer.scores, rows)
            self._writer.append(
                step.number,
                layer.name,
                shift=layer.shift.numpy(),
                shift_after=layer.shift_after.numpy(),
                loads=layer.loads.numpy(),
                step_size=self._step_size(layer),
                scores=sample,
                whole=sample is not None
                and len(sample) * self.config.model.top_k == int(layer.loads.sum()),
            )

    def close(self) -> None:
        self._writer.close()

    def _step_size(self, layer: Layer) -> np.ndarray | None:
        """What multiplied each expert's gap in tokens, for rules that follow the gap: the paper's
        epsilon_k (eq. 6).
        """
        balancer = self.trainer.balancers[layer.name]
        if not isinstance(balancer, Dual) or not isinstance(balancer.direction, LoadGap):
            return None
        gap = balancer.target.gap(layer.loads.to(balancer.steps.device)).cpu().numpy()
        moved = (layer.shift_after.double() - layer.shift.double()).numpy()
        return np.divide(moved, gap, out=np.zeros_like(gap), where=gap != 0)


class Histograms(Observer):
    """histograms/: how scores and shifts are distributed at chosen steps (the paper's figures 3 and
    4).
    """

    BINS = 128

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder, self.steps = folder, set(config.histogram_steps)

    def stepped(self, step: Step, seconds: float) -> None:
        if step.number not in self.steps:
            return
        self.folder.mkdir(exist_ok=True)
        layers = {layer.name: self._count(layer) for layer in step.layers}
        write_json(
            self.folder / f"step-{step.number:08d}.json", {"step": step.number, "layers": layers}
        )

    def _count(self, layer: Layer) -> dict[str, Any]:
        """Shifts are so few that they are kept as they are."""
        assert layer.scores is not None
        counts, edges = np.histogram(
            layer.scores.numpy(), self.BINS, range=(0, float(layer.scores.max()))
        )
        return {
            "scores": {"from": 0.0, "to": float(edges[-1]), "counts": counts.tolist()},
            "shift": layer.shift.tolist(),
        }


class TensorBoard(Observer):
    """tensorboard/, if that package is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resumed(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.folder), purge_step=step + 1)

    def stepped(self, step: Step, seconds: float) -> None:
        self._add("train", step.number, step.loss, [layer.imbalance for layer in step.layers])

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


def _spread(scores: torch.Tensor | None, rows: int) -> np.ndarray | None:
    """Some rows, evenly over the batch, or all if there are no more."""
    if scores is None or rows == 0:
        return None
    every = max(1, -(-len(scores) // rows))
    return scores[::every].numpy()
