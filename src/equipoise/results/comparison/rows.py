"""rows: what was kept of a comparison, as rows of a table: mean, spread and values over seeds for
each scheme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from equipoise.results.columns import COMPARISON_KEYS
from equipoise.results.comparison.rows_file import KeptComparison, KeptRun, SchemeAbout, load_kept
from equipoise.results.over_seeds import NOT_MEASURED, OverSeeds, figures_to_json

EQUAL_BALANCE_FORMAT = 2
"""format of measured.json since which given_up is at equal balance: what earlier ones call so is
another figure
"""


class FailedSeed(TypedDict):
    seed: int
    error: str


@dataclass(frozen=True)
class SchemeRow:
    """One scheme of a comparison: a row of its table."""

    about: SchemeAbout
    """its entry in the manifest"""
    seeds: int
    """runs that have finished"""
    failed: list[FailedSeed] = field(default_factory=list)
    """runs that have not"""
    figures: dict[str, OverSeeds] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.about["name"]

    @property
    def label(self) -> str:
        return self.about["label"]

    @property
    def balanced(self) -> bool:
        return self.about.get("balancer") != "none"

    def mean_of(self, key: str) -> float | None:
        return self.figures.get(key, NOT_MEASURED).mean

    def values_of(self, key: str) -> dict[str, float]:
        """By seed."""
        return self.figures.get(key, NOT_MEASURED).values

    def to_json(self) -> dict[str, object]:
        """As it stands in table.json."""
        return {
            **self.about,
            "seeds": self.seeds,
            "failed": self.failed,
            "values": {key: figure.values for key, figure in self.figures.items()},
            **figures_to_json(self.figures),
        }


@dataclass(frozen=True)
class SchemeRuns:
    """One scheme: its row of the table, and its finished runs, one for each seed."""

    row: SchemeRow
    runs: list[KeptRun]

    @property
    def label(self) -> str:
        return self.row.label


@dataclass(frozen=True)
class ComparisonResults:
    title: str
    preset: str
    steps: int
    schemes: list[SchemeRuns]
    seeds: list[int] = field(default_factory=list)
    """that were asked for"""
    finished: str | None = None
    """the day the last run had finished; None in files of earlier versions"""

    @property
    def rows(self) -> list[SchemeRow]:
        return [scheme.row for scheme in self.schemes]


def read_comparison(path: Path) -> ComparisonResults:
    """From a rows.json, or from the folder of a comparison or a training. Nothing is run."""
    return comparison_results(load_kept(path))


def comparison_results(kept: KeptComparison) -> ComparisonResults:
    about = kept["manifest"]
    return ComparisonResults(
        kept["title"],
        about["preset"],
        about["steps"],
        [_scheme_runs(kept, each) for each in about["schemes"]],
        list(about["seeds"]),
        kept.get("finished"),
    )


def _scheme_runs(kept: KeptComparison, scheme: SchemeAbout) -> SchemeRuns:
    runs = [run for run in kept["runs"] if run["scheme"] == scheme["name"]]
    finished = [run for run in runs if "result" in run]
    failed: list[FailedSeed] = [
        {"seed": run["seed"], "error": run["error"]} for run in runs if "result" not in run
    ]
    return SchemeRuns(SchemeRow(scheme, len(finished), failed, over_runs(finished)), finished)


def over_runs(finished: Sequence[KeptRun]) -> dict[str, OverSeeds]:
    """Each figure over the runs that have it."""
    figures = [(str(run["seed"]), _figures_of(run)) for run in finished]
    return {
        key: OverSeeds.of_values(
            {seed: value for seed, found in figures if (value := found.get(key)) is not None}
        )
        for key in COMPARISON_KEYS
    }


def _figures_of(run: KeptRun) -> Mapping[str, Any]:
    found: dict[str, Any] = {**run["result"], **run["measured"]}
    if run["measured"].get("format", 0) < EQUAL_BALANCE_FORMAT:
        found.pop("given_up", None)
    return found
