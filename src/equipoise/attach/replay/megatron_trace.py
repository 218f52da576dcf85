"""Megatron-core's routing trace (--moe-routing-trace-path), read and written.

A file a rank, a line of JSON for every call of a router, in the order of the calls:

    {"step": 0, "stage": "pre_dispatch", "block": "decoder", "layer": 3, "rank": 0,
     "num_tokens": 2, "topk": 2, "top_indices": [[5, 1], [0, 7]]}

`layer` is the number of the module in its pipeline stage. Where Megatron's router returned a mask,
a token's experts stand in ascending order and not in that of their scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.attach.replay.expert_choices import Rows, narrow_integers
from equipoise.storage.atomic import write_text


def read_megatron_trace(
    path: str | Path, *, step: int | None = None, first_layer: int = 0
) -> dict[int, Rows]:
    """(T, K) by layer, of one rank's file: all tokens, or those of one step.

    Args:
        first_layer: how many layers the pipeline stages before this rank's hold.
    """
    parts: dict[int, list[Rows]] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            found = _read_line(json.loads(line), step)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{path}, line {number} is no record of a routing trace: "
                f"{type(error).__name__}: {error}"
            ) from error
        if found is not None:
            layer, rows = found
            parts.setdefault(first_layer + layer, []).append(rows)
    if not parts:
        raise ValueError(f"{path} has no record of a decoder layer" + _of_step(step))
    return {layer: narrow_integers(np.concatenate(rows)) for layer, rows in sorted(parts.items())}


def write_megatron_trace(
    path: str | Path, experts: Mapping[int, Rows], *, step: int = 0, rank: int = 0
) -> Path:
    """Write (T, K) by layer as one step of one rank."""
    lines = []
    for layer, rows in experts.items():
        about = {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": int(layer)}
        size = {"rank": rank, "num_tokens": len(rows), "topk": int(rows.shape[1])}
        lines.append(json.dumps({**about, **size, "top_indices": rows.tolist()}))
    write_text(Path(path), "\n".join(lines) + "\n")
    return Path(path)


def _of_step(step: int | None) -> str:
    return "" if step is None else f" of step {step}"


def _read_line(record: Any, step: int | None) -> tuple[int, Rows] | None:
    """The layer and its (T, K) experts; None for layers that predict further tokens (MTP), and
    other steps.
    """
    if record["block"] != "decoder" or (step is not None and record["step"] != step):
        return None
    shape = (int(record["num_tokens"]), int(record["topk"]))
    rows = np.asarray(record["top_indices"]) if shape[0] else np.empty(shape, np.int64)
    if rows.dtype.kind != "i" or rows.shape != shape:
        raise ValueError(f"top_indices are not {shape[0]} x {shape[1]} integers")
    return int(record["layer"]), rows
