"""How even the loads of a step were: for logs, and as a table to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

import torch
from torch import Tensor

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.tables import text_table
from equipoise.routing import metrics as load_metrics

LOGGED_METRICS: tuple[Literal["imbalance", "max_violation"], ...] = ("imbalance", "max_violation")
"""what the callbacks log"""

_STEP_HEADER = ["layer", "choices", "imbalance", "max violation", "dead experts", "bias spread"]


class BalanceMetrics(TypedDict, total=False):
    """What `Balancing.metrics` returns."""

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
    routers: Sequence[BalancedRouter], loads: Mapping[str, Tensor], steps: int, dropped: int
) -> BalanceMetrics:
    """Means over layers, the worst layer, and each layer's own."""
    layers = {
        router.name: _layer_metrics(router, loads[router.name])
        for router in routers
        if router.name in loads
    }
    answer: BalanceMetrics = {"step": steps, "dropped_steps": dropped}
    if layers:
        for name in LOGGED_METRICS:
            answer[name] = sum(layer[name] for layer in layers.values()) / len(layers)
        answer["worst_layer"] = max(layers, key=lambda name: layers[name]["max_violation"])
    answer["layers"] = layers
    return answer


def _layer_metrics(router: BalancedRouter, loads: Tensor) -> dict[str, float]:
    measured = load_metrics(loads.cpu(), router.balancer.target.weights.cpu())
    return {name: float(value) for name, value in measured.items()}


def step_table(
    routers: Sequence[BalancedRouter], loads: Mapping[str, Tensor], measured: BalanceMetrics
) -> str:
    """One row for every router: its loads of the last step, and how far its shift is spread."""
    rows = []
    for router in routers:
        layer = measured["layers"].get(router.name, {})
        choices = int(loads.get(router.name, torch.zeros(1)).sum())
        numbers = [
            layer.get(name, float("nan")) for name in ("imbalance", "max_violation", "dead_experts")
        ]
        shift = router.applied_shift
        rows.append([router.name, choices, *numbers, float(shift.max() - shift.min())])
    dropped = measured["dropped_steps"]
    title = f"step {measured['step']}" + (f", {dropped} dropped" if dropped else "")
    return f"{title}\n{text_table(_STEP_HEADER, rows)}"
