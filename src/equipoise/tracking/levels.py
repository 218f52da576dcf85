"""levels: a handful of numbers that say how even the loads of a step are, over all layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from equipoise.routing import metrics
from equipoise.routing.chance import binomial_floor
from equipoise.tracking.layer_balance import LayerBalance

LoadWeights = Tensor | Sequence[float] | None


def balance_levels(layers: Mapping[str, LayerBalance]) -> dict[str, float]:
    """The numbers that are sent, by name; what no layer knows is left out.

    imbalance         mean |load - target| / target, mean over layers
    imbalance_floor   what chance alone leaves of it, if tokens were independent
    max_violation     fullest expert's load / target - 1, mean over layers
    worst_violation   the same in the layer where it is greatest
    worst_layer       which one that is: its place, from 0
    dead_experts      experts without a token, in all layers together
    switched_share    tokens whose experts the last update changed, mean over layers
    idle_share        device time lost waiting, over the forwards of all layers
    """
    if not layers:
        raise ValueError("there is no balanced layer to report about")
    each = [metrics(layer.loads.cpu(), _on_cpu(layer.target)) for layer in layers.values()]
    violations = [found["max_violation"] for found in each]
    known = {
        "imbalance": _mean(found["imbalance"] for found in each),
        "imbalance_floor": _mean(_floor_of(layer) for layer in layers.values()),
        "max_violation": _mean(violations),
        "worst_violation": max(violations),
        "worst_layer": float(np.argmax(violations)),
        "dead_experts": sum(found["dead_experts"] for found in each),
        "switched_share": _mean(layer.switched for layer in layers.values()),
        "idle_share": _joined_idle_share(layer.idle_share for layer in layers.values()),
    }
    return {name: value for name, value in known.items() if value is not None}


def relative_loads(layer: LayerBalance) -> np.ndarray:
    """(E,) loads over their targets; zeros where nothing was counted."""
    loads = layer.loads.double().cpu().numpy()
    total = loads.sum()
    return loads / (total * _target_shares(layer)) if total else loads


def _target_shares(layer: LayerBalance) -> np.ndarray:
    """(E,) the share of all choices that each expert should have."""
    experts = len(layer.loads)
    given = np.ones(experts) if layer.target is None else np.asarray(_on_cpu(layer.target), float)
    return given / given.sum()


def _floor_of(layer: LayerBalance) -> float | None:
    tokens = 0.0 if layer.top_k is None else int(layer.loads.sum()) / layer.top_k
    if layer.top_k is None or tokens == 0:
        return None
    # no expert can have more than every token, where targets are very uneven
    share = np.minimum(layer.top_k * _target_shares(layer), 1.0)
    return binomial_floor(tokens, share)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _joined_idle_share(shares: Iterable[float | None]) -> float | None:
    """Layers run one after another: each takes 1 / (1 - share) of the time of an even one."""
    lasts = [1 / (1 - share) for share in shares if share is not None]
    return 1 - len(lasts) / sum(lasts) if lasts else None


def _on_cpu(target: LoadWeights) -> LoadWeights:
    return target.detach().cpu() if isinstance(target, Tensor) else target
