"""sweep: what `equipoise sweep` leaves on disk, as typed rows.

    FOLDER/
        manifest.json    the trials with their settings, and what is common (SweepManifest)
        table.json       best settings, all settings by validation loss, failures (SweepTable)
        trials/NAME/     a training each (run.py)

Trials that differ in their seed only are one setting, and one row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, cast

from equipoise.results.columns import SWEEP_KEYS, VALIDATION_LOSS, setting_column
from equipoise.results.over_seeds import OverSeeds, figures_from_json, figures_to_json
from equipoise.results.run import load_json
from equipoise.storage.json_files import read_json, read_json_object

SWEEP_FORMAT = "equipoise sweep"
SWEEP_MANIFEST = "manifest.json"
SWEEP_TABLE = "table.json"


class TrialAbout(TypedDict):
    """One training of the grid, as the manifest has it."""

    scheme: str
    label: str
    settings: dict[str, Any]
    """the axes' values"""
    config: dict[str, Any]
    """what its config has of its own, flat"""


class SweepManifest(TypedDict):
    format: str
    version: int
    common: dict[str, Any]
    """settings that all trials have, flat"""
    trials: dict[str, TrialAbout]


class FailedTrial(TypedDict):
    trial: str
    settings: dict[str, Any]
    error: str


class SweepTableJson(TypedDict):
    """table.json; SweepTable is the same with typed rows."""

    best: list[dict[str, object]]
    rows: list[dict[str, object]]
    failed: list[FailedTrial]
    unfinished: list[str]


@dataclass(frozen=True)
class SettingRow:
    """One setting: means over its seeds."""

    scheme: str
    label: str
    settings: Mapping[str, Any]
    """the axes' values but for the seed"""
    trials: int
    finished: int
    figures: dict[str, OverSeeds] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """of the trials"""
    at_the_end: list[str] | None = None
    """of a scheme's best setting: the axes whose value is the lowest or highest tried"""

    @property
    def loss(self) -> float | None:
        """Mean validation loss, by which settings are ranked."""
        return self.figures[VALIDATION_LOSS.key].mean

    @property
    def complete(self) -> bool:
        return self.finished == self.trials

    def described_settings(self) -> str:
        """In words: "u 0.1, learning rate 0.001"."""
        columns = [setting_column(key) for key in self.settings if key != "balancer"]
        return ", ".join(f"{each.name} {each.text(self.settings[each.key])}" for each in columns)

    def to_json(self) -> dict[str, object]:
        ends = {} if self.at_the_end is None else {"at_the_end": self.at_the_end}
        return {
            "scheme": self.scheme,
            "label": self.label,
            "settings": dict(self.settings),
            "trials": self.trials,
            "finished": self.finished,
            "values": {key: figure.values for key, figure in self.figures.items()},
            "names": self.names,
            **figures_to_json(self.figures),
            **ends,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> SettingRow:
        return cls(
            row["scheme"],
            row["label"],
            row["settings"],
            row["trials"],
            row["finished"],
            figures_from_json(row, SWEEP_KEYS),
            row.get("names", []),
            row.get("at_the_end"),
        )


@dataclass(frozen=True)
class SweepTable:
    """The content of table.json."""

    best: list[SettingRow]
    """a row for each scheme: its lowest validation loss"""
    rows: list[SettingRow]
    """every setting, by validation loss"""
    failed: list[FailedTrial]
    unfinished: list[str]
    """names of trials"""

    @property
    def axes(self) -> list[str]:
        """What varied, beside the scheme: a column each."""
        keys = dict.fromkeys(key for row in self.rows for key in row.settings)
        return [key for key in keys if key != "balancer"]

    @property
    def with_loss(self) -> list[SettingRow]:
        """Settings with a figure to show."""
        return [row for row in self.rows if row.loss is not None and math.isfinite(row.loss)]

    @property
    def seeds(self) -> int:
        return max((row.trials for row in self.rows), default=0)

    def to_json(self) -> SweepTableJson:
        return {
            "best": [row.to_json() for row in self.best],
            "rows": [row.to_json() for row in self.rows],
            "failed": self.failed,
            "unfinished": self.unfinished,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SweepTable:
        best, rows = (
            [SettingRow.from_json(row) for row in content[name]] for name in ("best", "rows")
        )
        return cls(best, rows, content["failed"], content["unfinished"])


@dataclass(frozen=True)
class SweepResults:
    """A sweep's folder."""

    title: str
    common: dict[str, Any]
    """settings that all trials have"""
    table: SweepTable


def is_sweep(folder: Path) -> bool:
    path = folder / SWEEP_MANIFEST
    return path.exists() and load_json(path).get("format") == SWEEP_FORMAT


def load_manifest(folder: Path) -> SweepManifest:
    """A sweep's own parts are not asked of a folder that says it is of another kind."""
    path = folder / SWEEP_MANIFEST
    says = load_json(path).get("format", SWEEP_FORMAT)
    parts = ("common", "trials") if says == SWEEP_FORMAT else ()
    return cast(SweepManifest, read_json_object(path, keys=parts))


def load_sweep(folder: Path) -> SweepResults:
    if not (folder / SWEEP_TABLE).exists():
        raise ValueError(
            f"{folder} has no table yet: run the same `equipoise sweep` again to continue"
        )
    path = folder / SWEEP_TABLE
    content = read_json_object(path, keys=("best", "rows", "failed", "unfinished"))
    try:
        table = SweepTable.from_json(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}. The same sweep writes it anew") from None
    return SweepResults(folder.resolve().name, load_manifest(folder)["common"], table)


def load_search(path: Path) -> list[SettingRow]:
    """The rows of a search of u: the table.json of a sweep, anywhere."""
    return search_rows(read_json(path), path)


def search_rows(content: Any, path: object) -> list[SettingRow]:
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise ValueError(f"{path} is not the table.json of `equipoise sweep`")
    return [SettingRow.from_json(row) for row in content["rows"]]
