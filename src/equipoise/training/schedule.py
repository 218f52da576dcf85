"""The learning rate over a training: up in a line, down in a cosine."""

from __future__ import annotations

import math

from equipoise.training.config import Config


def learning_rate(config: Config, step: int) -> float:
    """The rate of a step, counted from 0.

    rises as (step + 1) / warmup_steps, then
    falls as final + (1 - final) (1 + cos(pi t)) / 2     with t from 0 to 1 over the other steps
    """
    warmup, final = config.warmup_steps, config.final_learning_rate
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    t = (step - warmup) / max(1, config.steps - warmup)
    return config.learning_rate * (final + (1 - final) * (1 + math.cos(math.pi * t)) / 2)
