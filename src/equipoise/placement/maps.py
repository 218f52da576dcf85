"""Placements as engines read them, and back.

A slot's number is its device's number times the slots of a device, plus its place there; all three
engines count them so. Where each format is read:

    vllm         a JSON list for every MoE layer: the expert in each slot. load_static_expert_map in
                 vllm/models/deepseek_v4/expert_map.py of pull request 53022 (--eplb-config
                 expert_map_path), the same lists in 49572 (initial_expert_map_path). No release
                 that was seen reads a map yet (main of 2026-08-22 does not)
    sglang       {"physical_to_logical_map": rows}, and no other key: compute_initial_expert_
                 location_metadata in python/sglang/srt/eplb/expert_location.py
                 (--init-expert-location). A row for every layer of the model, dense ones too
    vllm-ascend  {"moe_layer_count", "layer_list": [{"layer_id", "device_count", "device_list":
                 [{"device_id", "device_expert"}]}]}: expert_file_to_tensor in vllm_ascend/eplb/
                 core/eplb_utils.py (additional_config eplb_config expert_map_path). Its index of a
                 device's experts has one place for each expert, so no device may hold two copies
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.storage.arrays import Array
from equipoise.storage.atomic import write_text
from equipoise.storage.json_files import JsonObject, read_json

PLACEMENT_FORMAT, PLACEMENT_VERSION = "equipoise placement", 1


def save_maps(
    folder: Path,
    content: JsonObject,
    slots: Array,
    names: Sequence[str],
    model_layers: int | None,
) -> dict[str, Path | str]:
    """Write every format into the folder.

    Args:
        folder: made where it is missing.
        content: of placement.json.
        slots: (L, D, S), the expert in each slot.
        names: of the layers.
        model_layers: of the whole model, for SGLang.

    Returns:
        The file of each format, or the reason why it was not written. A file of that name which is
        not written anew is deleted: it would be of another placement.
    """
    folder.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], object]] = {
        "placement": lambda: content,
        "vllm": lambda: vllm_map(slots),
        "sglang": lambda: sglang_map(slots, layer_numbers(names), model_layers),
        "vllm-ascend": lambda: ascend_map(slots, names),
    }
    written: dict[str, Path | str] = {}
    for name, make in makers.items():
        path = folder / f"{name}.json"
        try:
            write_text(path, json.dumps(make()) + "\n")
            written[name] = path
        except ValueError as error:
            path.unlink(missing_ok=True)
            written[name] = str(error)
    return written


def vllm_map(slots: Array) -> list[list[int]]:
    return slots.reshape(len(slots), -1).tolist()


def sglang_map(
    slots: Array, numbers: Sequence[int], model_layers: int | None = None
) -> dict[str, list[list[int]]]:
    """Rows of layers without experts are what SGLang itself begins with: slot s holds s mod E."""
    least = max(numbers) + 1
    if model_layers is not None and model_layers < least:
        raise ValueError(
            f"the model has {model_layers} layers, but one that was recorded is number "
            f"{least - 1}: count all layers, dense ones too"
        )
    flat = slots.reshape(len(slots), -1)
    rows = np.tile(np.arange(flat.shape[1]) % (int(flat.max()) + 1), (model_layers or least, 1))
    rows[list(numbers)] = flat
    return {"physical_to_logical_map": rows.tolist()}


def ascend_map(slots: Array, names: Sequence[str]) -> dict[str, object]:
    for name, layer in zip(names, slots):
        _refuse_doubles(name, layer)
    layers = [
        {
            "layer_id": number,
            "device_count": len(layer),
            "device_list": [
                {"device_id": device, "device_expert": experts.tolist()}
                for device, experts in enumerate(layer)
            ],
        }
        for number, layer in enumerate(slots)
    ]
    return {"moe_layer_count": len(slots), "layer_list": layers}


def layer_numbers(names: Sequence[str]) -> list[int]:
    """The place of each layer in its model, from the number in its name: model.layers.3.mlp is 3.
    Names that do not say, or not all something else, count from 0.
    """
    found = [re.findall(r"(?<![0-9A-Za-z])\d+(?![0-9A-Za-z])", name) for name in names]
    numbers = [int(each[0]) for each in found if each]
    return numbers if len(set(numbers)) == len(names) else list(range(len(names)))


def read_map(path: str | Path, devices: int) -> Array:
    """(L, D, S): the slots in a file of any of the four formats. SGLang's has a row for every layer
    of the model.

    Args:
        path: of the file.
        devices: that its slots are shared by; placement.json and vllm-ascend's files say it too.
    """
    content = read_json(Path(path))
    try:
        rows = np.array(_rows_of(content), np.int64)
        return rows.reshape(len(rows), devices, -1)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} holds no placement on {devices} devices that is known here: {error}"
        ) from None


def _rows_of(content: Any) -> list[Any]:
    """For each layer its slots, flat or by device."""
    if isinstance(content, list):
        return content
    if "physical_to_logical_map" in content:
        return content["physical_to_logical_map"]
    if "layer_list" in content:
        return [
            [device["device_expert"] for device in layer["device_list"]]
            for layer in content["layer_list"]
        ]
    return [layer["devices"] for layer in content["layers"]]


def _refuse_doubles(name: str, layer: Array) -> None:
    for device, experts in enumerate(layer):
        if len(set(experts.tolist())) < len(experts):
            raise ValueError(
                f"device {device} of layer {name} holds an expert twice, which vllm-ascend cannot "
                "index: place with distinct (--distinct)"
            )
