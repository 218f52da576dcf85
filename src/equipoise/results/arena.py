"""arena: what `equipoise arena --out FOLDER` leaves on disk, as typed rows.

    FOLDER/
        arena.json                    names of the cells' files that were asked for last, in order
        STREAM-BALANCER-RATE-*.json   a cell each: a balancer at one rate on a stream (CellResult)

The terminal's table, the page, its CSV and --json are all made from these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TypedDict

from equipoise.storage.json_files import JsonObject, read_json_object

ARENA_MANIFEST = "arena.json"
CAPACITY_FACTOR = 1.25
"""of the capacity that dropped_share is of"""


class ArenaManifest(TypedDict):
    """The content of arena.json."""

    cells: list[str]
    """names of files in the same folder"""


@dataclass(frozen=True)
class CellResult:
    """What a cell achieved. Steady is the last third of the steps."""

    stream: str
    balancer: str
    rate: float | None
    """None for balancers that have none"""
    steady_imbalance: float
    over_floor: float | None
    """None where the floor is 0: every token takes every expert"""
    steps_to_floor: int | None
    """the first step within twice the floor"""
    affinity_kept: float
    """sum of the chosen scores over that of the exact optimum; above 1 where loads are uneven"""
    switched: float
    """share of tokens whose experts an update changes"""
    idle_share: float
    steady_max_violation: float
    floor: float
    """the imbalance that chance alone leaves"""
    lag_one: float | None
    """the imbalance under the exact optimum of the batch before; None with groups"""
    imbalance: list[float]
    """of every step"""
    max_violation: list[float]
    """of every step"""
    regret: float | None = None
    """against the best shift that stays, as a share of the optimum; None without a shift, with
    groups, and in files of version 0.1
    """
    dynamic_regret: float | None = None
    """against each batch's own optimum, as a share of it"""
    path_length: float | None = None
    """how far the batches' own optima moved, summed over the steps, in score"""
    dropped_share: float | None = None
    """choices that a capacity factor of 1.25 would drop; None in files of before 2026-11-19"""
    sequence_violation: float | None = None
    """the fullest expert's load / target - 1 within single sequences; None without sequences"""

    def summary_row(self) -> dict[str, object]:
        """What --json prints: the figures of the table, without those of every step."""
        return {name: value for name, value in asdict(self).items() if name in SUMMARY_KEYS}


@dataclass(frozen=True)
class DivergedCell:
    """A cell without figures: its shift became NaN or infinite on the way."""

    stream: str
    balancer: str
    rate: float | None
    diverged_after: int
    """steps it made; the update of the last one made the shift useless"""

    def sentence(self) -> str:
        rate = "" if self.rate is None else f" at rate {self.rate:g}"
        return (
            f"{self.balancer}{rate} on {self.stream} diverged: its shift is not finite after step "
            f"{self.diverged_after}. It has no figures; a lower rate may hold"
        )

    def summary_row(self) -> dict[str, object]:
        """What --json prints: the keys of other cells, without figures."""
        return {**dict.fromkeys(SUMMARY_KEYS), **asdict(self)}


SUMMARY_KEYS = (
    "stream",
    "balancer",
    "rate",
    "steady_imbalance",
    "over_floor",
    "steps_to_floor",
    "affinity_kept",
    "switched",
    "idle_share",
    "regret",
    "dynamic_regret",
    "path_length",
    "dropped_share",
    "sequence_violation",
)
CELL_KEYS = tuple(field.name for field in fields(CellResult))
REQUIRED_CELL_KEYS = tuple(each.name for each in fields(CellResult) if each.default is MISSING)
DIVERGED_KEYS = tuple(field.name for field in fields(DivergedCell))


@dataclass(frozen=True)
class ArenaResults:
    """A row for every finished cell, in the order they were asked for."""

    title: str
    rows: Sequence[CellResult]
    missing: int = 0
    """cells that were asked for and are not finished"""
    diverged: Sequence[DivergedCell] = ()
    """cells that have no figures"""

    @property
    def streams(self) -> list[str]:
        return list(dict.fromkeys(row.stream for row in self.rows))

    @property
    def balancers(self) -> list[str]:
        return list(dict.fromkeys(row.balancer for row in self.rows))

    def of_stream(self, stream: str) -> list[CellResult]:
        return [row for row in self.rows if row.stream == stream]

    def best_rates(self, stream: str) -> list[CellResult]:
        """Of every balancer on a stream, the cell that was most even in steady state."""
        best: dict[str, CellResult] = {}
        for row in sorted(self.of_stream(stream), key=lambda row: row.steady_imbalance):
            best.setdefault(row.balancer, row)
        return [best[name] for name in self.balancers if name in best]


def is_arena(folder: Path) -> bool:
    return (folder / ARENA_MANIFEST).exists()


def load_arena(folder: Path) -> ArenaResults:
    """The cells that the folder's last `equipoise arena` or `tune` asked for, as far as they are
    finished.
    """
    names = _load_object(folder / ARENA_MANIFEST).get("cells", [])
    cells = [load_cell(folder / name) for name in names if (folder / name).exists()]
    rows = [cell for cell in cells if isinstance(cell, CellResult)]
    diverged = [cell for cell in cells if isinstance(cell, DivergedCell)]
    if not rows and diverged:
        raise ValueError(f"{folder}: no cell has figures. {diverged[0].sentence()}")
    if not rows:
        raise ValueError(
            f"{folder} has no finished cell yet: run the same `equipoise arena` again to continue"
        )
    return ArenaResults(folder.resolve().name, rows, len(names) - len(cells), diverged)


def load_cell(path: Path) -> CellResult | DivergedCell:
    """One cell's file; what a later version adds to it is ignored."""
    found = _load_object(path)
    if all(name in found for name in DIVERGED_KEYS):
        return DivergedCell(**{name: found[name] for name in DIVERGED_KEYS})
    if missing := [name for name in REQUIRED_CELL_KEYS if name not in found]:
        raise ValueError(
            f"{path} is not a cell of this version of the arena: it lacks {', '.join(missing)}. "
            "Delete it"
        )
    return CellResult(**{name: found[name] for name in CELL_KEYS if name in found})


def _load_object(path: Path) -> JsonObject:
    remedy = "delete it, and run the same `equipoise arena` again"
    return read_json_object(path, remedy=remedy)
