"""How uneven the loads of a step were, in Megatron's own tracker, beside its auxiliary losses.

Its loggers (console, TensorBoard, W&B) then show `moe_imbalance` and `moe_max_violation`: a mean
over layers, or one value each with moe_per_layer_logging. The tracker sums what micro-batches
record and divides by their number; a step records once, so the number is multiplied here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from equipoise.integrations.megatron.topk_router import BalancedRouting
from equipoise.routing import load_metrics
from equipoise.storage.optional import import_optional

_MOE = "megatron.core.transformer.moe"
TRACKED = ("imbalance", "max_violation")


def record_loads(routers: Iterable[BalancedRouting], micro_batches: int) -> None:
    """Record the loads of the last step of these routers, which `micro_batches` made up."""
    record = _tracker()
    for router in routers:
        if router.loads is None:
            continue
        measured = load_metrics(router.loads, router.balancer.target.weights)
        layer, layers = _place_of(router)
        for name in TRACKED:
            record(f"moe_{name}", (measured[name] * micro_batches).float(), layer, layers)


def _tracker() -> Callable[..., Any]:
    """MoEMetricsTracker.record, or the function that stood in its place before 0.18."""
    # later releases keep the old function's name too
    if importlib.util.find_spec(f"{_MOE}.moe_logging") is not None:
        logging: Any = import_optional(f"{_MOE}.moe_logging", extra="megatron")
        return logging.get_moe_metrics_tracker().record
    utils: Any = import_optional(f"{_MOE}.moe_utils", extra="megatron")
    return utils.save_to_aux_losses_tracker


def _place_of(router: BalancedRouting) -> tuple[int | None, int]:
    """The layer's number from 1, and how many layers there are; multi-token prediction is last."""
    of_model = router.config.num_layers
    number = getattr(router, "layer_number", None)
    if number is not None and getattr(router, "is_mtp_layer", False):
        number += of_model
    return number, of_model + (getattr(router.config, "mtp_num_layers", None) or 0)
