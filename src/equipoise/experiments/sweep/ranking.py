"""ranking: what a sweep found. A row for each setting, and for each scheme the setting with the
lowest validation loss.

Trials that differ only in their seed are one setting: means over its seeds, and their spread
(standard deviation). Only a setting whose seeds have all finished can be the best one: a mean over
fewer is luckier.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from equipoise.experiments.processes.job import failure
from equipoise.experiments.schemes import SCHEMES

FIGURES = ("validation_loss", "imbalance", "max_violation", "train_loss", "seconds")
NUMBER = int | float


def ranking(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Best settings, all settings sorted by validation loss, and what failed or is not finished."""
    settings: dict[str, list[dict[str, Any]]] = {}
    failed, unfinished = [], []
    for name, about in manifest["trials"].items():
        trial = {
            "trial": name,
            "settings": about["settings"],
            "scheme": about["scheme"],
            "label": about["label"],
        }
        path = folder / "trials" / name
        if (path / "result.json").exists():
            trial["result"] = json.loads((path / "result.json").read_text(encoding="utf-8"))
        elif (error := failure(path)) is not None:
            failed.append({"trial": name, "settings": about["settings"], "error": error})
        else:
            unfinished.append(name)
        settings.setdefault(_without_seed(about["settings"]), []).append(trial)
    rows = sorted((_row(trials) for trials in settings.values()), key=_order)
    return {"best": best(rows, manifest), "rows": rows, "failed": failed, "unfinished": unfinished}


def best(rows: Iterable[dict[str, Any]], manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """For each scheme its first complete row, and which of its values stand at an end of what was
    tried.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["finished"] == row["trials"] and math.isfinite(row["validation_loss"]):
            found.setdefault(row["scheme"], row)
    order = list(dict.fromkeys(about["scheme"] for about in manifest["trials"].values()))
    return [
        {**found[name], "at_the_end": _at_the_end(found[name], manifest)}
        for name in order
        if name in found
    ]


def _at_the_end(row: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
    """A better value may lie beyond."""
    ends = []
    for key, value in row["settings"].items():
        tried = {
            about["settings"][key]
            for about in manifest["trials"].values()
            if about["scheme"] == row["scheme"] and isinstance(about["settings"].get(key), NUMBER)
        }
        if len(tried) > 1 and value in (min(tried), max(tried)):
            ends.append(key)
    return ends


def _row(trials: list[dict[str, Any]]) -> dict[str, Any]:
    first = trials[0]
    settings = {key: value for key, value in first["settings"].items() if key != "seed"}
    done = [trial for trial in trials if "result" in trial]
    results = [trial["result"] for trial in done]
    row: dict[str, Any] = {name: first[name] for name in ("scheme", "label")}
    row |= {"settings": settings, "trials": len(trials), "finished": len(results), "values": {}}
    row["names"] = [trial["trial"] for trial in trials]
    for name in FIGURES:
        values = [result[name] for result in results]
        row["values"][name] = {
            str(trial["settings"].get("seed", "")): trial["result"][name] for trial in done
        }
        row[name] = statistics.fmean(values) if values else None
        row[f"{name}_spread"] = statistics.stdev(values) if len(values) > 1 else None
    return row


def _order(row: dict[str, Any]) -> tuple[bool, float]:
    loss = row["validation_loss"]
    return (loss is None, math.inf if loss is None or math.isnan(loss) else loss)


def _without_seed(settings: dict[str, Any]) -> str:
    return json.dumps(
        {key: value for key, value in settings.items() if key != "seed"}, sort_keys=True
    )


def scheme_of(balancer: str, looks_ahead: bool) -> tuple[str, str]:
    """Name and label: the paper's, where it has one."""
    for scheme in SCHEMES:
        if (scheme.balancer, scheme.looks_ahead) == (balancer, looks_ahead):
            return scheme.name, scheme.label
    ahead = ("_ahead", ", look-ahead") if looks_ahead else ("", "")
    return balancer + ahead[0], balancer + ahead[1]
