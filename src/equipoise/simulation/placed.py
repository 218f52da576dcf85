"""Experts on the devices of a group: from a list, or from any map that `equipoise place` writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from equipoise.placement.maps import read_map
from equipoise.storage.json_files import read_json


def read_devices(path: str | Path, num_experts: int, group: int) -> tuple[tuple[int, ...], ...]:
    """The device of every expert within a group: a row for all layers, or one for each.

    Args:
        path: a JSON list of the device of every expert; or placement.json, vllm.json, sglang.json
            or vllm-ascend.json of `equipoise place`, without redundant copies.
        num_experts: E.
        group: devices that share the experts.
    """
    content = read_json(Path(path), remedy="it must be a list of the device of every expert")
    if isinstance(content, dict) and content.keys() & _MAP_KEYS:
        return tuple(_devices_of_slots(path, each, num_experts) for each in read_map(path, group))
    if isinstance(content, list) and content and isinstance(content[0], list):
        return tuple(_devices_of_slots(path, each, num_experts) for each in read_map(path, group))
    if not isinstance(content, list) or not all(type(each) is int for each in content):
        raise ValueError(
            f"{path} must hold a list of whole numbers, the device of every expert, or a map that "
            "equipoise place wrote"
        )
    if len(content) != num_experts:
        raise ValueError(
            f"{path} names {len(content)} devices, and there are {num_experts} experts"
        )
    if wrong := [each for each in content if not 0 <= each < group]:
        raise ValueError(f"{path} has device {wrong[0]}: a group has devices 0 to {group - 1}")
    return (tuple(content),)


_MAP_KEYS = {"layers", "layer_list", "physical_to_logical_map"}


def _devices_of_slots(path: str | Path, slots: np.ndarray, num_experts: int) -> tuple[int, ...]:
    """From (D, S) experts in the slots of each device."""
    if sorted(slots.flatten().tolist()) != [*range(num_experts)]:
        raise ValueError(
            f"{path} has {slots.size} slots for the {num_experts} experts: each must stand there "
            "once. Copies share their expert's tokens, which is not simulated: place without "
            "--redundant"
        )
    devices = np.empty(num_experts, np.int64)
    devices[slots.flatten()] = np.repeat(np.arange(len(slots)), slots.shape[1])
    return tuple(devices.tolist())
