"""Reading a results folder: a comparison (manifest.json) or a single training (result.json). Nothing is written or run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.training.observers import read_metrics

FIGURES = ("validation_loss", "imbalance", "max_violation", "idle_share", "given_up", "dual_gap", "seconds")


@dataclass(frozen=True)
class Series:
    """One scheme: its row of the table, and its finished runs, one for each seed."""

    row: dict[str, Any]
    runs: list[Path]

    @property
    def label(self) -> str:
        return str(self.row["label"])


@dataclass(frozen=True)
class Results:
    title: str
    preset: str
    steps: int
    series: list[Series]


def read_results(folder: Path) -> Results:
    if (folder / "manifest.json").exists():
        return _comparison(folder)
    if (folder / "result.json").exists():
        return _training(folder)
    raise ValueError(
        f"{folder} holds no results: neither a manifest.json, as `equipoise compare` writes it, nor the result.json of a "
        "finished training"
    )


def validation(run: Path) -> list[dict[str, Any]]:
    return [row for row in read_metrics(run / "metrics.jsonl") if row["kind"] == "validation"]


def verdicts(run: Path) -> list[dict[str, Any]]:
    return list(_measured(run).get("verdicts", []))


def histograms(run: Path) -> list[dict[str, Any]]:
    return [_json(path) for path in sorted((run / "histograms").glob("step-*.json"))]


def _comparison(folder: Path) -> Results:
    about = _json(folder / "manifest.json")
    if not (folder / "table.json").exists():
        raise ValueError(f"{folder} is not finished: run the same `equipoise compare` again, and it goes on")
    series = [
        Series(row, [run for seed in about["seeds"] if _done(run := folder / about["runs"][f"{row['name']}-{seed}"])])
        for row in _json(folder / "table.json")
    ]
    return Results(folder.resolve().name, about["preset"], about["steps"], series)


def _training(folder: Path) -> Results:
    result = _json(folder / "result.json")
    known = {**result, **_measured(folder)}
    paper = dict.fromkeys(("update_rate", "validation_loss", "imbalance"))
    row: dict[str, Any] = {"name": result["balancer"], "label": result["balancer"], "paper": paper}
    row |= {"update_rate": result["update_rate"], "seeds": 1, "failed": []}
    for name in FIGURES:
        row |= {name: known.get(name), f"{name}_spread": None}
    return Results(folder.resolve().name, result["preset"], result["steps"], [Series(row, [folder])])


def _measured(run: Path) -> dict[str, Any]:
    return _json(run / "measured.json") if (run / "measured.json").exists() else {}


def _done(run: Path) -> bool:
    return (run / "result.json").exists()


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
