"""Cluster: the devices that a layer's experts are put on, and how many places each of them has.

A slot is a place for one copy of one expert. Every device has as many as every other, because the
engines that read a placement have arrays of one size on all devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from equipoise.storage.arrays import Array


@dataclass(frozen=True)
class Cluster:
    """Devices, their slots, and what is put into them."""

    num_experts: int
    devices: int
    redundant: int = 0
    """copies beyond the first of each expert"""
    nodes: int = 1
    """that the devices stand in, consecutive devices together"""
    groups: int | None = None
    """equal blocks of consecutive experts of which a token may use only some"""
    distinct: bool = False
    """whether no device may hold two copies of one expert"""

    @classmethod
    def checked(
        cls,
        num_experts: int,
        devices: int,
        redundant: int = 0,
        nodes: int = 1,
        groups: int | None = None,
        distinct: bool = False,
    ) -> Self:
        """The cluster, or a ValueError that says what does not fit and what would."""
        made = cls(num_experts, devices, redundant, nodes, groups, distinct)
        made._check_sizes()
        made._check_slots()
        return made

    @property
    def slots(self) -> int:
        """Copies of experts, on all devices together."""
        return self.num_experts + self.redundant

    @property
    def slots_per_device(self) -> int:
        return self.slots // self.devices

    @property
    def devices_per_node(self) -> int:
        return self.devices // self.nodes

    @property
    def hierarchical(self) -> bool:
        """Whether a group's experts stay within one node. EPLB's condition: the nodes divide the
        groups. Tokens that may use few groups then visit few nodes.
        """
        return self.nodes > 1 and self.groups is not None and self.groups % self.nodes == 0

    @property
    def experts_per_group(self) -> int:
        return self.num_experts // (self.groups or 1)

    def allows(self, slots: Array) -> bool:
        """Whether slots (D, S) are a placement here: every expert somewhere, no doubles where they
        must be distinct, groups within nodes where they are kept.
        """
        whole = len(np.unique(slots)) == self.num_experts
        doubles = any(len(set(device)) < len(device) for device in slots.tolist())
        return whole and self._keeps_groups(slots) and not (self.distinct and doubles)

    def _keeps_groups(self, slots: Array) -> bool:
        nodes = (slots // self.experts_per_group).reshape(self.nodes, -1)
        kept = sum(len(np.unique(node)) for node in nodes) == self.groups
        return kept or not self.hierarchical

    def _check_sizes(self) -> None:
        for name in ("num_experts", "devices", "nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.redundant < 0:
            raise ValueError(f"redundant counts copies: 0 or more, not {self.redundant}")
        if self.devices % self.nodes:
            raise ValueError(
                f"{self.devices} devices do not divide over {self.nodes} nodes: name a number of "
                "nodes that divides the devices"
            )
        if self.groups is not None and (self.groups < 1 or self.num_experts % self.groups):
            raise ValueError(
                f"{self.num_experts} experts do not divide into {self.groups} equal groups"
            )

    def _check_slots(self) -> None:
        over = self.slots % self.devices
        if over:
            raise ValueError(
                f"{self.num_experts} experts and {self.redundant} redundant copies are "
                f"{self.slots} slots, which {self.devices} devices cannot share equally: "
                f"use redundant {self._redundant_that_fit(over)}"
            )
        if self.distinct and not self.fits:
            raise ValueError(
                f"{self.redundant} redundant copies are more than {self.num_experts} experts can "
                f"have on {self.reach} devices without two of one expert on one: use fewer"
            )

    @property
    def fits(self) -> bool:
        """Whether every copy finds a device without one of its expert, if that is asked for."""
        return self.slots <= self.num_experts * self.reach or not self.distinct

    @property
    def reach(self) -> int:
        """On how many consecutive devices the copies of one expert may be."""
        return self.devices_per_node if self.hierarchical else self.devices

    @property
    def most_copies(self) -> int:
        """That one expert can have."""
        most = self.redundant + 1
        return min(most, self.reach) if self.distinct else most

    def _redundant_that_fit(self, over: int) -> str:
        more = self.redundant + self.devices - over
        less = self.redundant - over
        return f"{less} or {more}" if less >= 0 else str(more)
