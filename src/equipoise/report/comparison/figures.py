"""The figures' data: what the page draws, and the same as CSV.

A figure is a dict that page.js knows how to draw. Histograms and heat maps show each scheme's first
seed; lines are means over seeds.
"""

from __future__ import annotations

from html import escape, unescape
from typing import Any

import numpy as np

from equipoise.results.comparison.rows import Results, Series
from equipoise.results.comparison.thin import CURVES, short
from equipoise.results.comparison.written import as_csv, differences_csv, table_csv

SMOOTHED = 60  # a line of training is a running mean over one such part of it


def figures(results: Results) -> dict[str, Any]:
    """Plotly reads a little HTML in its texts, so labels are escaped here."""
    some = [series for series in results.series if series.runs]
    return {
        **{
            name: [_line_and_dots(series, name) for series in some]
            for name in ("imbalance", "loss")
        },
        "floor": _floor(some),
        "scores": [_frames(series, "scores") for series in some if "scores" in _pictured(series)],
        "shifts": [_frames(series, "shifts") for series in some if "shifts" in _pictured(series)],
        "loads": [_loads(series) for series in some if _pictured(series).get("loads")],
    }


def tables(results: Results, made: dict[str, Any]) -> dict[str, str]:
    """Each figure's data as CSV, and the tables'."""
    lines = {
        name: [
            (unescape(one["label"]), x, y)
            for one in made[name]
            for x, y in zip(one["x"], one["y"], strict=True)
        ]
        for name in ("imbalance", "loss")
    }
    bars = {
        name: [
            (unescape(one["label"]), frame["step"], x, y)
            for one in made[name]
            for frame in one["frames"]
            for x, y in zip(one["x"], frame["y"], strict=True)
        ]
        for name in ("scores", "shifts")
    }
    heat = [
        (unescape(one["label"]), unescape(layer["name"]), step, expert, value / 100)
        for one in made["loads"]
        for layer in one["layers"]
        for expert, row in enumerate(layer["z"])
        for step, value in zip(layer["steps"], row, strict=True)
    ]
    return {
        **{name: as_csv(("scheme", "step", name), rows) for name, rows in lines.items()},
        **{
            name: as_csv(("scheme", "step", "bin centre", "share"), rows)
            for name, rows in bars.items()
        },
        "loads": as_csv(("scheme", "layer", "step", "expert", "load / target"), heat),
        "training": as_csv(("scheme", "step", *CURVES), _training(results)),
        "results": table_csv(results.rows),
        "differences": differences_csv(results.rows),
    }


def _line_and_dots(series: Series, name: str) -> dict[str, Any]:
    """Dots of the validation set, at the steps that all seeds have, and the line of the training
    batches.
    """
    means = _means(
        [{row["step"]: row.get(name) for row in run["validation"]} for run in series.runs]
    )
    line = _training_line(series, name)
    return {
        "label": escape(series.label),
        "x": list(means),
        "y": list(means.values()),
        "training": line,
    }


def _training_line(series: Series, name: str) -> dict[str, Any]:
    means = curve(series, name)
    return {"x": list(means), "y": [short(value) for value in _smooth(list(means.values()))]}


def curve(series: Series, name: str) -> dict[int, float | None]:
    """Of the training, a mean over seeds at each step that was kept."""
    runs = [run["training"] for run in series.runs]
    return _means([dict(zip(run["step"], run[name], strict=True)) for run in runs])


def _floor(some: list[Series]) -> dict[str, Any]:
    """What chance alone leaves of the validation imbalance: of the balanced schemes, which differ
    little in it.
    """
    runs = [run for series in some if series.row.get("balancer") != "none" for run in series.runs]
    runs = runs or [run for series in some for run in series.runs]
    means = _means([{row["step"]: row.get("floor") for row in run["validation"]} for run in runs])
    known = {step: value for step, value in means.items() if value is not None}
    return {"x": list(known), "y": list(known.values())}


def _training(results: Results) -> list[tuple[Any, ...]]:
    lines = []
    for series in results.series:
        found = [curve(series, name) for name in CURVES] if series.runs else [{}]
        lines += [(series.label, step, *(each[step] for each in found)) for step in found[0]]
    return lines


def _means(runs: list[dict[int, float | None]]) -> dict[int, float | None]:
    """At the steps that all have; None where one has no value."""
    made: dict[int, float | None] = {}
    for step in sorted(set.intersection(*(set(run) for run in runs))) if runs else []:
        found = [run[step] for run in runs]
        made[step] = None if None in found else short(float(np.mean(found)))  # type: ignore[arg-type]
    return made


def _smooth(values: list[float | None]) -> list[float | None]:
    """A running mean, narrower at the ends; a gap where a value is missing."""
    reach = len(values) // SMOOTHED // 2
    around = [values[max(0, n - reach) : n + reach + 1] for n in range(len(values))]
    return [None if None in each else float(np.mean(each)) for each in around]  # type: ignore[arg-type]


def _pictured(series: Series) -> dict[str, Any]:
    return series.runs[0].get("figures", {})


def _frames(series: Series, name: str) -> dict[str, Any]:
    return {"label": escape(series.label), **_pictured(series)[name]}


def _loads(series: Series) -> dict[str, Any]:
    layers = [{**layer, "name": escape(layer["name"])} for layer in _pictured(series)["loads"]]
    return {"label": escape(series.label), "layers": layers}
