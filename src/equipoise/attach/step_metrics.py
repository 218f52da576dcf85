"""How even the loads of a step were, as a table to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.tables import text_table
from equipoise.balancing.step_metrics import BalanceMetrics

_STEP_HEADER = ["layer", "choices", "imbalance", "max violation", "dead experts", "bias spread"]


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
