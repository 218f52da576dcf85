"""trace/: loads and shifts of every layer, and the scores of some tokens. The theorems and the
arena read it (equipoise.trace).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from equipoise.balancing.shift.stated_step_size import stated_step_size
from equipoise.trace import TraceAbout, TraceWriter, is_trace
from equipoise.training.evaluation import target_weights
from equipoise.training.observers.base import Observer
from equipoise.training.trainer import Trainer, TrainingStep


class TraceRecorder(Observer):
    """Appends to trace/ every `trace_every` steps, and whole batches at some of them."""

    def __init__(self, folder: Path, trainer: Trainer) -> None:
        self.folder, self.config, self.trainer = folder, trainer.config, trainer

    def resumed(self, step: int) -> None:
        if is_trace(self.folder):
            self._writer = TraceWriter.resume(self.folder, after=step)
            return
        config = self.config
        self._writer = TraceWriter(
            self.folder,
            top_k=config.model.top_k,
            layers=list(self.trainer.balancers),
            target=self._uneven_target(),
            about=TraceAbout(
                gate=config.model.score,
                sequence_length=config.model.sequence_length,
                balancer=config.balancer,
                update_rate=config.update_rate,
                balancer_options=config.balancer_options,
                seed=config.seed,
            ),
        )

    def _uneven_target(self) -> list[float] | None:
        """The weights of the target loads, one for all layers; None where they are equal."""
        weights = target_weights(next(iter(self.trainer.balancers.values())))
        return None if weights is None else weights.tolist()

    def stepped(self, step: TrainingStep, seconds: float) -> None:
        whole_batch = self.config.keeps_batch(step.number)
        if step.number % self.config.trace_every and not whole_batch:
            return
        for layer in step.layers:
            rows = (
                len(layer.scores)
                if whole_batch and layer.scores is not None
                else self.config.trace_scores
            )
            sample = _spread_rows(layer.scores, rows)
            balancer = self.trainer.balancers[layer.name]
            step_size = stated_step_size(balancer, layer.loads)
            self._writer.append(
                step.number,
                layer.name,
                shift=layer.shift.numpy(),
                shift_after=layer.shift_after.numpy(),
                loads=layer.loads.numpy(),
                step_size=None if step_size is None else step_size.numpy(),
                scores=sample,
                # a whole batch is one whose loads follow from scores and shift alone
                whole=sample is not None
                and balancer.chooses_by_shift
                and len(sample) * self.config.model.top_k == int(layer.loads.sum()),
            )

    def close(self) -> None:
        self._writer.close()


def _spread_rows(scores: torch.Tensor | None, rows: int) -> np.ndarray | None:
    """Some rows, evenly over the batch, or all if there are no more."""
    if scores is None or rows == 0:
        return None
    every = max(1, -(-len(scores) // rows))
    return scores[::every].numpy()
