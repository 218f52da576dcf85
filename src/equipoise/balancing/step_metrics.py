"""How even the loads of a step were, over all layers of a model: for logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

from torch import Tensor

from equipoise.balancing.balancer import Balancer
from equipoise.routing import metrics as load_metrics

LOGGED_METRICS: tuple[Literal["imbalance", "max_violation"], ...] = ("imbalance", "max_violation")
"""what the callbacks log"""


class BalanceMetrics(TypedDict, total=False):
    """Of one step: what `Balancing.metrics` and `ModelSteps.metrics` return."""

    step: int
    """steps taken"""
    dropped_steps: int
    """steps that the optimizer skipped"""
    imbalance: float
    """mean over layers; only after the first step, like all that follow"""
    max_violation: float
    """mean over layers"""
    worst_layer: str
    """the one of the largest max_violation"""
    layers: dict[str, dict[str, float]]
    """the metrics of `equipoise.routing.metrics`, by router"""
    loads: dict[str, list[int]]
    """(E,) by router, on request"""


def step_metrics(
    balancers: Mapping[str, Balancer], loads: Mapping[str, Tensor], steps: int, dropped: int
) -> BalanceMetrics:
    """Means over layers, the worst layer, and each layer's own.

    Args:
        balancers: by name of their layer.
        loads: (E,) of the step, by name; layers without are left out.
        steps: taken so far.
        dropped: steps that were skipped so far.
    """
    layers = {
        name: _layer_metrics(balancer, loads[name])
        for name, balancer in balancers.items()
        if name in loads
    }
    answer: BalanceMetrics = {"step": steps, "dropped_steps": dropped}
    if layers:
        for name in LOGGED_METRICS:
            answer[name] = sum(layer[name] for layer in layers.values()) / len(layers)
        answer["worst_layer"] = max(layers, key=lambda name: layers[name]["max_violation"])
    answer["layers"] = layers
    return answer


def _layer_metrics(balancer: Balancer, loads: Tensor) -> dict[str, float]:
    target = getattr(balancer, "target", None)
    weights = None if target is None else target.weights.cpu()
    return {name: float(value) for name, value in load_metrics(loads.cpu(), weights).items()}
