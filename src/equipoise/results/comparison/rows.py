"""results: what was kept of a comparison, as rows of a table: mean and spread over seeds for each
scheme, and every value.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.results.comparison.columns import KEYS

Row = dict[str, Any]
EQUAL_BALANCE = 2
"""format of measured.json since which given_up is at equal balance: what earlier ones call so is
another figure
"""


@dataclass(frozen=True)
class Series:
    """One scheme: its row of the table, and its finished runs, one for each seed (keep.py says what
    a run has).
    """

    row: Row
    runs: list[dict[str, Any]]

    @property
    def label(self) -> str:
        return str(self.row["label"])


@dataclass(frozen=True)
class Results:
    title: str
    preset: str
    steps: int
    series: list[Series]

    @property
    def rows(self) -> list[Row]:
        return [series.row for series in self.series]


def results(kept: dict[str, Any]) -> Results:
    about = kept["manifest"]
    return Results(
        kept["title"],
        about["preset"],
        about["steps"],
        [_series(kept, each) for each in about["schemes"]],
    )


def _series(kept: dict[str, Any], scheme: dict[str, Any]) -> Series:
    runs = [run for run in kept["runs"] if run["scheme"] == scheme["name"]]
    finished = [run for run in runs if "result" in run]
    failed = [{"seed": run["seed"], "error": run["error"]} for run in runs if "result" not in run]
    return Series(row(scheme, finished, failed), finished)


def row(
    scheme: dict[str, Any], finished: Sequence[dict[str, Any]], failed: Sequence[dict[str, Any]]
) -> Row:
    """Mean, spread (standard deviation) and values by seed of each figure; None for what was not
    measured.
    """
    made: Row = {**scheme, "seeds": len(finished), "failed": list(failed), "values": {}}
    for key in KEYS:
        found = {
            str(run["seed"]): value for run in finished if (value := _value(run, key)) is not None
        }
        made["values"][key] = found
        made[key] = statistics.fmean(found.values()) if found else None
        made[f"{key}_spread"] = statistics.stdev(found.values()) if len(found) > 1 else None
    return made


def _value(run: dict[str, Any], key: str) -> float | None:
    if key == "given_up" and run["measured"].get("format", 0) < EQUAL_BALANCE:
        return None
    return {**run["result"], **run["measured"]}.get(key)
