"""picture: a step's loads, layers by experts, under the name that trackers show it by."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.drawing.heat_map import draw_heat_map
from equipoise.tracking.layer_balance import LayerBalance
from equipoise.tracking.levels import relative_loads
from equipoise.tracking.senders import Picture


def load_picture(layers: Mapping[str, LayerBalance], step: int, prefix: str) -> Picture:
    """The heat map of a step's loads, with its name."""
    loads = {name: relative_loads(layer) for name, layer in layers.items()}
    return f"{prefix}/loads", draw_heat_map(loads, f"loads over target, step {step}")
