"""Read the router's tensors of a checkpoint, and nothing else of it: safetensors, sharded or not,
never unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from equipoise.attach.find.quirks import BIAS_NAMES, TOP_K_NAMES, checkpoint_quirk
from equipoise.attach.find.routing_spec import PROBED_SCORES
from equipoise.attach.state.sidecar import SIDECAR_NAME
from equipoise.storage.json_files import read_json_object
from equipoise.storage.optional import import_optional

_LAYER = re.compile(r"^(.*?\d+)\.")
_GATE_WEIGHT = re.compile(r"(gate|router|classifier)[^.]*\.weight$")
_OTHER_WEIGHT = re.compile(r"proj|shared|attn|attention")


@dataclass(frozen=True)
class StoredBias:
    """A router's bias as a checkpoint holds it."""

    key: str
    layer: str
    """the name of the router's block"""
    bias: Tensor
    """(E,) in the dtype it is stored in"""
    gate: Tensor | None
    """(E, D) the gate's weights, where they were found"""


@dataclass(frozen=True)
class RoutingConfig:
    """What a config says about routing."""

    family: str
    """its model_type"""
    top_k: int
    score: str
    groups: tuple[int, int] | None
    """(number, kept)"""


def read_routing_config(folder: Path) -> RoutingConfig:
    """From `folder/config.json`, or its text_config where it has one."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: name a folder that save_pretrained wrote, or that came from "
            "the hub"
        )
    config = read_json_object(path)
    family = str(config.get("model_type", "?"))
    inner = {**config, **(config.get("text_config") or {})}
    top_k = next((inner[name] for name in TOP_K_NAMES if isinstance(inner.get(name), int)), None)
    if top_k is None:
        raise ValueError(
            f"{path} does not say how many experts a token takes: none of {', '.join(TOP_K_NAMES)}"
        )
    number = inner.get("n_group") or inner.get("num_expert_group") or 1
    kept = inner.get("topk_group") or 1
    if type(number) is not int or (number != 1 and kept not in range(1, number + 1)):
        raise ValueError(f"{path} is damaged: it keeps {kept!r} of {number!r} groups of experts")
    groups = (number, kept) if number > kept else None
    return RoutingConfig(family, top_k, _score_name(family, inner), groups)


def _score_name(family: str, config: Mapping[str, object]) -> str:
    """As the config names it; else the family's own, which for most is the sigmoid."""
    named = str(
        config.get("scoring_func") or config.get("moe_router_activation_func") or ""
    ).replace("sqrtsoftplus", "sqrt_softplus")
    if named in PROBED_SCORES and named != "identity":
        return named
    return checkpoint_quirk(family).score or "sigmoid"


def read_biases(folder: Path, routing: RoutingConfig) -> Iterator[StoredBias]:
    """Every correction bias of a checkpoint, with its gate's weights, in the order of layers."""
    try:
        yield from _read_biases(folder, routing)
    except import_optional("safetensors", extra="hf").SafetensorError as error:
        raise ValueError(
            f"a .safetensors file of {folder} is damaged ({error}): fetch it again"
        ) from error


def _read_biases(folder: Path, routing: RoutingConfig) -> Iterator[StoredBias]:
    safe_open = import_optional("safetensors", extra="hf").safe_open
    files = weight_files(folder)
    for key in sorted((key for key in files if _is_bias(key, routing)), key=_layer_order):
        with safe_open(files[key], framework="pt") as file:
            bias = file.get_tensor(key).reshape(-1)
        gate_key = _gate_key(key, files, safe_open, bias.numel())
        gate = None
        if gate_key is not None:
            with safe_open(files[gate_key], framework="pt") as file:
                gate = file.get_tensor(gate_key)[: bias.numel()]
        yield StoredBias(key, _block_name(key, routing), bias, gate)


def weight_files(folder: Path) -> dict[str, Path]:
    """key -> the file that holds it."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _indexed_files(index)
    paths = sorted(path for path in folder.glob("*.safetensors") if path.name != SIDECAR_NAME)
    if not paths:
        raise FileNotFoundError(
            f"{folder} holds no .safetensors file. Pickled checkpoints (.bin, .pt) are not "
            "opened: convert them first"
        )
    safetensors = import_optional("safetensors", extra="hf")
    files: dict[str, Path] = {}
    for path in paths:
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                files |= dict.fromkeys(file.keys(), path)
        except safetensors.SafetensorError as error:
            raise ValueError(
                f"{path} is damaged, or not a safetensors file ({error}): fetch it again"
            ) from error
    return files


def _indexed_files(index: Path) -> dict[str, Path]:
    names = read_json_object(index).get("weight_map")
    if not isinstance(names, dict):
        raise ValueError(f"{index} is damaged: it has no weight_map. Fetch it again")
    folder = index.parent
    lost = sorted({name for name in names.values() if not (folder / name).is_file()})
    if lost:
        raise FileNotFoundError(f"{index} names files that are not there: {', '.join(lost[:3])}")
    return {key: folder / name for key, name in names.items()}


def _is_bias(key: str, routing: RoutingConfig) -> bool:
    suffix = checkpoint_quirk(routing.family).bias_suffix
    return key.rsplit(".", 1)[-1] in BIAS_NAMES or (suffix is not None and key.endswith(suffix))


def _block_name(bias_key: str, routing: RoutingConfig) -> str:
    """The bias's key without its own name and the modules between it and the block."""
    for name in BIAS_NAMES:
        if bias_key.endswith(f".{name}"):
            block = bias_key.removesuffix(f".{name}").removesuffix(".moe_statics")
            return block.removesuffix(".gate").removesuffix(".router")
    return bias_key.removesuffix(checkpoint_quirk(routing.family).bias_suffix or "")


def _gate_key(
    bias_key: str, files: Mapping[str, Path], safe_open: Callable[..., Any], num_experts: int
) -> str | None:
    """The gate's weights: in the same layer, a matrix of at least E rows, its name the closest to
    the bias's.
    """
    layer = _LAYER.match(bias_key)
    if layer is None:
        return None
    near = [
        key
        for key in files
        if key.startswith(layer.group(0))
        and _GATE_WEIGHT.search(key)
        and not _OTHER_WEIGHT.search(key)
    ]
    for key in sorted(near, key=lambda key: -_common_parts(key, bias_key)):
        with safe_open(files[key], framework="pt") as file:
            shape = file.get_slice(key).get_shape()
        if len(shape) == 2 and shape[0] >= num_experts:
            return key
    return None


def _common_parts(one: str, other: str) -> int:
    """How many parts of two names agree from the left."""
    parts = list(zip(one.split("."), other.split(".")))
    return next((place for place, (left, right) in enumerate(parts) if left != right), len(parts))


def _layer_order(key: str) -> list[tuple[int, str]]:
    """Layer 10 after layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in key.split(".")]
