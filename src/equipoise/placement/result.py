"""What `place` found: the slots of every layer, and what they cost beside others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from equipoise.placement.cluster import Cluster
from equipoise.placement.maps import PLACEMENT_FORMAT, PLACEMENT_VERSION, save_maps
from equipoise.storage.arrays import Array

WAYS = ("linear", "eplb", "placed", "bound")


@dataclass(frozen=True)
class LayerPlacement:
    """One layer. Costs are tokens of the fullest device, mean over batches."""

    layer: str
    slots: Array
    """(devices, slots per device): the expert in each slot"""
    rival_slots: Array
    """the same of EPLB"""
    ranked: Mapping[str, Array]
    """for linear, eplb and placed: (devices,) tokens of the fullest device of each batch, of the
    next, ..., means over batches"""
    even: float
    """tokens of the mean device"""
    bound: float
    """no placement costs less"""
    proved: bool
    """whether the cost is the bound: no placement is better"""

    @property
    def cost(self) -> float:
        return float(self.ranked["placed"][0])

    @property
    def rival_cost(self) -> float:
        """of EPLB's placement"""
        return float(self.ranked["eplb"][0])

    @property
    def linear_cost(self) -> float:
        """of consecutive experts together, which is what engines begin with"""
        return float(self.ranked["linear"][0])

    def to_dict(self) -> dict[str, object]:
        """Its figures, and the experts of each device."""
        figures = ("cost", "rival_cost", "linear_cost", "even", "bound", "proved")
        return {
            "layer": self.layer,
            **{name: getattr(self, name) for name in figures},
            "devices": self.slots.tolist(),
        }


@dataclass(frozen=True)
class PlacementRow:
    """A way to place all layers: what it makes of device time."""

    way: str
    """linear, eplb, placed or bound"""
    fullest: float
    """the fullest device over the mean device, all layers together: 1 is perfect"""
    idle_share: float
    """of device time in the experts, spent waiting for the fullest device"""
    device_hours: float
    """for what takes `device_hours` as engines place experts: linear"""


@dataclass(frozen=True)
class Placement:
    """The experts of every layer on devices."""

    cluster: Cluster
    layers: tuple[LayerPlacement, ...]
    held_out: tuple[LayerPlacement, ...]
    """placements of the first half of the batches, judged on the second; empty for one batch"""
    batches: int
    seconds: float

    def __repr__(self) -> str:
        held = self.cluster.num_experts, self.cluster.redundant
        found = {row.way: f"{row.fullest:.3g}x" for row in self.rows()} if self.layers else {}
        return (
            f"Placement(experts={held[0]}, copies={held[1]}, devices={self.cluster.devices}, "
            f"layers={len(self.layers)}, fullest={found})"
        )

    @property
    def slots(self) -> Array:
        """(layers, devices, slots per device) int64: the expert in each slot."""
        return np.stack([layer.slots for layer in self.layers])

    def rows(self, device_hours: float = 1000.0, *, held_out: bool = False) -> list[PlacementRow]:
        """Before and after: linear, EPLB, this placement, and the bound; over all layers.

        Args:
            device_hours: that the experts take now, placed linearly.
            held_out: judge the placements of the first half of the batches on the second.
        """
        check_hours(device_hours)
        layers = self.held_out if held_out else self.layers
        even = sum(layer.even for layer in layers)
        cost = {
            "linear": sum(layer.linear_cost for layer in layers),
            "eplb": sum(layer.rival_cost for layer in layers),
            "placed": sum(layer.cost for layer in layers),
            "bound": sum(layer.bound for layer in layers),
        }
        return [_row(way, cost[way], even, cost["linear"], device_hours) for way in WAYS if even]

    def save(
        self, folder: str | os.PathLike[str], *, model_layers: int | None = None
    ) -> dict[str, Path | str]:
        """Write the placement for engines, each file whole or not at all.

            placement.json     this package's own: devices, layers, experts of each device
            vllm.json          a list for every MoE layer: the expert in each slot
            sglang.json        for --init-expert-location: a row for every layer of the model
            vllm-ascend.json   for expert_map_path

        Args:
            folder: made where it is missing.
            model_layers: how many layers the model has, dense ones too: SGLang wants a row for
                each. By default as many as the number in the last layer's name says.

        Returns:
            The file of each format, or why it was not written.
        """
        names = [layer.layer for layer in self.layers]
        return save_maps(Path(folder), self.to_dict(), self.slots, names, model_layers)

    def to_dict(self, device_hours: float = 1000.0) -> dict[str, object]:
        """As --json prints it and placement.json keeps it."""
        return {
            "format": PLACEMENT_FORMAT,
            "version": PLACEMENT_VERSION,
            **asdict(self.cluster),
            "policy": "hierarchical" if self.cluster.hierarchical else "global",
            "batches": self.batches,
            "seconds": self.seconds,
            "device_hours": device_hours,
            "fitted": [asdict(row) for row in self.rows(device_hours)],
            "held_out": [asdict(row) for row in self.rows(device_hours, held_out=True)],
            "layers": [layer.to_dict() for layer in self.layers],
        }


def check_hours(device_hours: float) -> None:
    if not 0 <= device_hours < np.inf:
        raise ValueError(f"device_hours is a time, finite and 0 or more, not {device_hours:g}")


def _row(way: str, cost: float, even: float, linear: float, device_hours: float) -> PlacementRow:
    return PlacementRow(way, cost / even, 1 - even / cost, device_hours * cost / linear)
