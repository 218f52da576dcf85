"""Reading a sweep's folder: what `equipoise sweep` wrote to manifest.json and table.json. Nothing
is run.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
FORMAT = "equipoise sweep"
RATE = "update_rate"
SHORT = {RATE: "u", "learning_rate": "learning rate", "weight_decay": "weight decay"}


@dataclass(frozen=True)
class Sweep:
    title: str
    common: dict[str, Any]
    """settings that all trials have"""
    best: list[Row]
    """a row for each scheme: its lowest validation loss"""
    rows: list[Row]
    """every setting, by validation loss"""
    failed: list[Row]
    unfinished: list[str]

    @property
    def axes(self) -> list[str]:
        """What varied, beside the scheme."""
        return [
            key
            for key in dict.fromkeys(key for row in self.rows for key in row["settings"])
            if key != "balancer"
        ]

    @property
    def finished(self) -> list[Row]:
        """Settings with a figure to show."""
        return [
            row
            for row in self.rows
            if row["validation_loss"] is not None and math.isfinite(row["validation_loss"])
        ]

    @property
    def seeds(self) -> int:
        return max((row["trials"] for row in self.rows), default=0)


def is_sweep(folder: Path) -> bool:
    path = folder / "manifest.json"
    return path.exists() and _json(path).get("format") == FORMAT


def read_sweep(folder: Path) -> Sweep:
    if not (folder / "table.json").exists():
        raise ValueError(
            f"{folder} has no table yet: run the same `equipoise sweep` again, and it goes on"
        )
    found = _json(folder / "table.json")
    parts = {name: found[name] for name in ("best", "rows", "failed", "unfinished")}
    return Sweep(folder.resolve().name, _json(folder / "manifest.json")["common"], **parts)


def written(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting(row: Row) -> str:
    """A row's values in words: "u 0.1, learning rate 0.001"."""
    return ", ".join(
        f"{SHORT.get(key, key)} {written(value)}"
        for key, value in row["settings"].items()
        if key != "balancer"
    )


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
