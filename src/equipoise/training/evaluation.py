"""What an evaluation says, and how far chance moved it.

Loads are counted for each sequence apart. The tokens of a sequence are alike, so chance is a matter
of which sequences were drawn, not which tokens. Drawing the sequences again with replacement (a
block bootstrap) gives

    imbalance_error   the standard deviation of the printed imbalance over such draws
    floor             the imbalance that chance alone leaves: how far the loads of a draw lie from
                      those of the whole set. A shift that is right for the text, and not for just
                      these sequences, shows this much
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from equipoise.balancing import Balancer
from equipoise.balancing.target import Target
from equipoise.results.run import LoadLevels, StepMetrics, pick_levels
from equipoise.routing import Routing, idle_share, metrics

DEVICES = 8
"""for which idle time is reported"""
BOOTSTRAP_DRAWS = 200


class Validation(NamedTuple):
    """The validation set under a model as it is."""

    loss: float
    """mean cross entropy"""
    layers: list[LoadLevels]
    """of each MoE layer, how uneven its loads are"""
    imbalance_error: float | None
    """standard error of the layers' mean imbalance; None where there is one sequence only"""
    floor: float | None
    """what chance alone leaves, mean over layers; None where there is one sequence only"""
    sequences: int
    """how many windows"""

    @property
    def imbalance(self) -> list[float]:
        """Of each MoE layer."""
        return [layer["imbalance"] for layer in self.layers]


class TrainingMeans(TypedDict):
    """Imbalance and idle share of a training's batches: over all steps, over the first fifth
    (early) and over the last quarter (late).
    """

    training_imbalance: float
    training_idle: float | None
    early_imbalance: float
    early_idle: float | None
    late_imbalance: float
    late_idle: float | None


def target_weights(balancer: Balancer) -> Tensor | None:
    """(E,) on the CPU: the weights of the target loads; None where they are equal, or where a
    balancer of one's own has no target.
    """
    target = getattr(balancer, "target", None)
    if not isinstance(target, Target):
        return None
    weights = target.weights.cpu()
    return None if bool((weights == weights[0]).all()) else weights


def loads_by_sequence(routings: Sequence[Routing], sequences: int, num_experts: int) -> Tensor:
    """(B, layers, E) int64: what each of a forward's sequences gave each expert."""
    if not routings:
        return torch.zeros(sequences, 0, num_experts, dtype=torch.int64)
    return torch.stack(
        [_loads(routing.experts.reshape(sequences, -1), num_experts) for routing in routings], dim=1
    )


def _loads(chosen: Tensor, num_experts: int) -> Tensor:
    """chosen (B, S K); the number E means that a choice was left empty."""
    empty = torch.zeros(len(chosen), num_experts + 1, dtype=torch.int64, device=chosen.device)
    return empty.scatter_add_(1, chosen, torch.ones_like(chosen))[:, :num_experts]


def summarise_validation(
    total_loss: float, loads: Tensor, target: Tensor | None = None
) -> Validation:
    """From the summed loss of the sequences and their loads (N, layers, E), against the weights
    (E,) of the target loads; None: equal.
    """
    loads = loads.cpu()
    error, floor = bootstrap_loads(loads.numpy(), None if target is None else target.numpy())
    return Validation(
        loss=total_loss / len(loads),
        layers=[pick_levels(metrics(layer, target)) for layer in loads.sum(0)],
        imbalance_error=error,
        floor=floor,
        sequences=len(loads),
    )


def bootstrap_loads(
    loads: np.ndarray,
    weights: np.ndarray | None = None,
    draws: int = BOOTSTRAP_DRAWS,
    seed: int = 0,
) -> tuple[float | None, float | None]:
    """(imbalance_error, floor) from loads (N, layers, E) and the target's weights (E,); see the top
    of the file. None for one sequence, which has no spread.
    """
    number, layers = loads.shape[:2]
    if number < 2 or layers == 0:
        return None, None
    times = np.random.default_rng(seed).multinomial(number, np.full(number, 1 / number), size=draws)
    drawn = np.tensordot(times.astype(float), loads.astype(float), axes=1)  # (draws, layers, E)
    whole = loads.sum(0)
    # sequences may be of unequal lengths
    drawn *= whole.sum(-1, keepdims=True) / drawn.sum(-1, keepdims=True)
    target = whole.mean(-1, keepdims=True)
    if weights is not None:
        target = target * (weights / weights.mean())
    # the spread of n things around their own mean is too small by this
    widen = (number / (number - 1)) ** 0.5
    imbalance = np.abs(drawn / target - 1).mean((1, 2))
    moved = np.abs(drawn - whole) / target
    return float(imbalance.std() * widen), float(moved.mean() * widen)


def device_idle_share(forwards: Tensor) -> float | None:
    """Of DEVICES devices with equal blocks of experts; None where experts cannot be divided so."""
    return None if forwards.shape[-1] % DEVICES else float(idle_share(forwards, DEVICES))


def combine_idle_shares(shares: Iterable[float | None]) -> float | None:
    """The idle share over forwards of equal size, from the share of each: a forward takes
    1 / (1 - share) of the time of an even one.
    """
    lasts = [1 / (1 - share) for share in shares if share is not None]
    return 1 - len(lasts) / sum(lasts) if lasts else None


def summarise_training(steps: Sequence[StepMetrics]) -> TrainingMeans:
    """From the rows of all steps. The first ones are most uneven, the last ones show what stays."""
    early, late = steps[: max(1, len(steps) // 5)], steps[-max(1, len(steps) // 4) :]
    return {
        "training_imbalance": _mean_imbalance(steps),
        "training_idle": _combined_idle_share(steps),
        "early_imbalance": _mean_imbalance(early),
        "early_idle": _combined_idle_share(early),
        "late_imbalance": _mean_imbalance(late),
        "late_idle": _combined_idle_share(late),
    }


def _mean_imbalance(rows: Sequence[StepMetrics]) -> float:
    return float(np.mean([row["imbalance"] for row in rows]))


def _combined_idle_share(rows: Sequence[StepMetrics]) -> float | None:
    return combine_idle_shares(row.get("idle_share") for row in rows)
