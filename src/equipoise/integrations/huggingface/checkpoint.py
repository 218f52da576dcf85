"""Read the router's tensors of a checkpoint, and nothing else of it: safetensors, sharded or not,
never unpickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from equipoise.attach.find.routers import BIAS_NAMES
from equipoise.attach.state.sidecar import SIDECAR_NAME
from equipoise.storage.optional import import_optional

_LAYER = re.compile(r"^(.*?\d+)\.")
_BIAS_OF_GATE = (
    "deepseek_v4",
)  # its checkpoints call it `gate.bias`; gpt_oss has one too, and it is another thing
_TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
)
_SOFTMAX = ("ernie4_5_moe", "ernie4_5_vl_moe", "ernie4_5_vl_moe_text", "longcat_flash")


@dataclass(frozen=True)
class StoredBias:
    """A router's bias as a checkpoint holds it."""

    key: str
    bias: Tensor
    """(E,) in the dtype it is stored in"""
    gate: Tensor | None
    """(E, D) the gate's weights, where they were found"""

    @property
    def layer(self) -> str:
        for name in BIAS_NAMES:
            if self.key.endswith(f".{name}"):
                return (
                    self.key.removesuffix(f".{name}")
                    .removesuffix(".moe_statics")
                    .removesuffix(".gate")
                    .removesuffix(".router")
                )
        return self.key.removesuffix(".gate.bias")


@dataclass(frozen=True)
class RoutingConfig:
    """What a config says about routing."""

    family: str
    top_k: int
    score: str
    groups: tuple[int, int] | None


def read_routing_config(folder: Path) -> RoutingConfig:
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: name a folder that save_pretrained wrote, or that came from "
            "the hub"
        )
    config = _read_json_object(path)
    family = str(config.get("model_type", "?"))
    inner: dict[str, Any] = {**config, **(config.get("text_config") or {})}
    top_k = next((inner[name] for name in _TOP_K if isinstance(inner.get(name), int)), None)
    if top_k is None:
        raise ValueError(
            f"{path} does not say how many experts a token takes: none of {', '.join(_TOP_K)}"
        )
    number, keep = (
        inner.get("n_group") or inner.get("num_expert_group") or 1,
        inner.get("topk_group") or 1,
    )
    return RoutingConfig(
        family, top_k, _score_name(family, inner), (number, keep) if number > keep else None
    )


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return found


def read_biases(folder: Path, routing: RoutingConfig) -> Iterator[StoredBias]:
    """Every correction bias of a checkpoint, with its gate's weights."""
    try:
        yield from _read_biases(folder, routing)
    except import_optional("safetensors", extra="hf").SafetensorError as error:
        raise ValueError(
            f"a .safetensors file of {folder} is damaged ({error}): fetch it again"
        ) from error


def _read_biases(folder: Path, routing: RoutingConfig) -> Iterator[StoredBias]:
    safe_open = import_optional("safetensors", extra="hf").safe_open
    homes = weight_files(folder)
    for key in sorted((key for key in homes if _is_bias(key, routing)), key=_layer_order):
        with safe_open(homes[key], framework="pt") as file:
            bias = file.get_tensor(key).reshape(-1)
        gate_key = _gate_key(key, homes, safe_open, bias.numel())
        gate = None
        if gate_key is not None:
            with safe_open(homes[gate_key], framework="pt") as file:
                gate = file.get_tensor(gate_key)[: bias.numel()]
        yield StoredBias(key, bias, gate)


def weight_files(folder: Path) -> dict[str, Path]:
    """key -> the file that holds it."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = _read_json_object(index).get("weight_map")
        if not isinstance(names, dict):
            raise ValueError(f"{index} is damaged: it has no weight_map. Fetch it again")
        lost = sorted({name for name in names.values() if not (folder / name).is_file()})
        if lost:
            raise FileNotFoundError(
                f"{index} names files that are not there: {', '.join(lost[:3])}"
            )
        return {key: folder / name for key, name in names.items()}
    files = sorted(path for path in folder.glob("*.safetensors") if path.name != SIDECAR_NAME)
    if not files:
        raise FileNotFoundError(
            f"{folder} holds no .safetensors file. Pickled checkpoints (.bin, .pt) are not "
            "opened: convert them first"
        )
    safetensors = import_optional("safetensors", extra="hf")
    homes: dict[str, Path] = {}
    for path in files:
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                homes |= dict.fromkeys(file.keys(), path)
        except safetensors.SafetensorError as error:
            raise ValueError(
                f"{path} is damaged, or not a safetensors file ({error}): fetch it again"
            ) from error
    return homes


def _is_bias(key: str, routing: RoutingConfig) -> bool:
    last = key.rsplit(".", 1)[-1]
    return last in BIAS_NAMES or (routing.family in _BIAS_OF_GATE and key.endswith(".gate.bias"))


def _gate_key(
    bias_key: str, homes: dict[str, Path], safe_open: Any, num_experts: int
) -> str | None:
    """The gate's weights: in the same layer, a matrix of at least E rows, its name the closest to
    the bias's.
    """
    layer = _LAYER.match(bias_key)
    if layer is None:
        return None
    near = [
        key
        for key in homes
        if key.startswith(layer.group(0))
        and re.search(r"(gate|router|classifier)[^.]*\.weight$", key)
        and not re.search(r"proj|shared|attn|attention", key)
    ]
    for key in sorted(near, key=lambda key: -_common_parts(key, bias_key)):
        with safe_open(homes[key], framework="pt") as file:
            shape = file.get_slice(key).get_shape()
        if len(shape) == 2 and shape[0] >= num_experts:
            return key
    return None


def _common_parts(one: str, other: str) -> int:
    """How many parts of two names agree from the left."""
    parts = list(zip(one.split("."), other.split(".")))
    return next((place for place, (left, right) in enumerate(parts) if left != right), len(parts))


def _score_name(family: str, config: dict[str, Any]) -> str:
    named = str(
        config.get("scoring_func") or config.get("moe_router_activation_func") or ""
    ).replace("sqrtsoftplus", "sqrt_softplus")
    if named in ("sigmoid", "softmax", "sqrt_softplus"):
        return named
    return "identity" if family == "kolibri1" else "softmax" if family in _SOFTMAX else "sigmoid"


def _layer_order(key: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in key.split(".")]
