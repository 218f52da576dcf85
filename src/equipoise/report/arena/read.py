"""Reading the folder of an arena: the cells of its last command, as plain rows. Nothing is written
or run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "arena.json"
NEEDED = (
    "stream", "balancer", "rate", "steady_imbalance", "over_floor", "steps_to_floor", "affinity_kept", "switched", "idle_share",
    "steady_max_violation", "floor", "lag_one", "imbalance", "max_violation",
)  # fmt: skip

Row = dict[str, Any]


@dataclass(frozen=True)
class Cells:
    """What an arena achieved: a row for every finished cell, in the order they were asked for."""

    title: str
    rows: Sequence[Row]
    missing: int = 0
    """cells that were asked for and are not finished"""

    @property
    def streams(self) -> list[str]:
        return list(dict.fromkeys(row["stream"] for row in self.rows))

    @property
    def balancers(self) -> list[str]:
        return list(dict.fromkeys(row["balancer"] for row in self.rows))

    def of(self, stream: str) -> list[Row]:
        return [row for row in self.rows if row["stream"] == stream]

    def best_rates(self, stream: str) -> list[Row]:
        """Of every balancer on a stream, the cell that was most even in steady state."""
        best: dict[str, Row] = {}
        for row in sorted(self.of(stream), key=lambda row: row["steady_imbalance"]):
            best.setdefault(row["balancer"], row)
        return [best[name] for name in self.balancers if name in best]


def is_arena(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def read_arena(folder: Path) -> Cells:
    """The cells that the folder's last `equipoise arena` or `tune` asked for, as far as they are
    finished.
    """
    names = _json(folder / MANIFEST).get("cells", [])
    rows = [_row(folder / name) for name in names if (folder / name).exists()]
    if not rows:
        raise ValueError(
            f"{folder} has no finished cell yet: give the same `equipoise arena` again, and it "
            "goes on"
        )
    return Cells(folder.resolve().name, rows, len(names) - len(rows))


def _row(path: Path) -> Row:
    row = _json(path)
    if lacking := [name for name in NEEDED if name not in row]:
        raise ValueError(
            f"{path} is not a cell of this version of the arena: it lacks {', '.join(lacking)}. "
            "Delete it"
        )
    return row


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {error}. Delete it, and give the same `equipoise arena` again"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not of an arena: it holds no object")
    return found
