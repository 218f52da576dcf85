"""Recorded loads: how many tokens each expert of each layer got, batch by batch.

They are read from a trace or a run, or from a plain file that any other program can write: .npy,
.npz and .safetensors with an array (batches, layers, experts), or JSON with the same nested lists,
bare or under "loads" or "logical_count" (which is what SGLang's recorder calls them).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from equipoise.storage.arrays import Array, read_array
from equipoise.storage.json_files import read_json
from equipoise.trace import Trace

_ARRAY_FILES = (".npy", ".npz", ".safetensors")
_JSON_KEYS = ("loads", "logical_count")


@dataclass(frozen=True)
class RecordedLoads:
    """Loads of every layer, and what is known of the experts."""

    loads: Array
    """(batches, layers, experts)"""
    layers: tuple[str, ...]
    """their names"""
    groups: int | None = None
    """blocks of experts of which a token may use some; None: not known, or none"""

    @classmethod
    def of(cls, source: str | os.PathLike[str] | Array | RecordedLoads) -> RecordedLoads:
        """Those of a trace, of a run, of a file or of an array (batches, layers, experts); where
        there is one layer its axis may be missing.
        """
        if isinstance(source, RecordedLoads):
            return source
        if isinstance(source, str | os.PathLike):
            return cls._read(Path(source))
        return cls._named(source, "loads")

    @property
    def halves(self) -> tuple[Array, Array] | None:
        """The first and the second half of the batches; None of a single batch."""
        middle = len(self.loads) // 2
        return (self.loads[:middle], self.loads[middle:]) if middle else None

    @classmethod
    def _read(cls, path: Path) -> Self:
        if path.suffix in _ARRAY_FILES:
            return cls._named(read_array(path, default="loads"), str(path))
        if path.suffix == ".json":
            return cls._of_json(path)
        if path.is_file():
            raise ValueError(f"{path}: loads are read from a trace's folder, .npy, .npz or .json")
        return cls._of_trace(Trace.open(path))

    @classmethod
    def _of_trace(cls, trace: Trace) -> Self:
        """The steps that every layer has."""
        steps = set.intersection(*(set(trace.steps(layer)) for layer in trace.layers))
        if not steps:
            raise ValueError(
                f"{trace.folder} has no step of which all layers are recorded: train with "
                "--trace-every 1 or more"
            )
        loads = [[trace.loads(layer, step) for step in sorted(steps)] for layer in trace.layers]
        if len({len(layer[0]) for layer in loads}) > 1:
            raise ValueError(f"{trace.folder} has layers of different numbers of experts")
        groups = trace.groups[0] if trace.groups else None
        return cls(np.array(loads).swapaxes(0, 1), tuple(trace.layers), groups)

    @classmethod
    def _of_json(cls, path: Path) -> Self:
        content = read_json(path)
        about: dict[str, Any] = content if isinstance(content, dict) else {}
        if about:
            key = next((key for key in _JSON_KEYS if key in about), None)
            if key is None:
                raise ValueError(f"{path} holds neither {' nor '.join(_JSON_KEYS)}")
            content = about[key]
        try:
            array = np.array(content, np.float64)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: its loads are no table of numbers ({error})") from None
        return cls._named(array, str(path), about.get("layers"), about.get("groups"))

    @classmethod
    def _named(
        cls,
        loads: Array,
        source: str,
        layers: list[str] | None = None,
        groups: int | None = None,
    ) -> Self:
        loads = np.asarray(loads)
        if loads.ndim == 2:
            loads = loads[:, None]
        _check_loads(loads, source)
        names = tuple(str(each) for each in (range(loads.shape[1]) if layers is None else layers))
        if len(names) != loads.shape[1]:
            raise ValueError(f"{source} names {len(names)} layers and has {loads.shape[1]}")
        return cls(loads, names, groups)


def _check_loads(loads: Array, source: str) -> None:
    if loads.ndim != 3 or not loads.size:
        raise ValueError(
            f"{source} has the shape {loads.shape}: loads are (batches, layers, experts), or "
            "(batches, experts) of one layer"
        )
    if loads.dtype.kind not in "iuf" or not (np.isfinite(loads) & (loads >= 0)).all():
        raise ValueError(f"{source}: loads count tokens, finite numbers of 0 or more")
