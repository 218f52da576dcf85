"""The data of a comparison's figures: what comparison.js draws, and the same as CSV.

Histograms and heat maps show each scheme's first seed; lines are means over seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape, unescape
from typing import Any, Literal, TypedDict

import numpy as np

from equipoise.report.sheets import Sheets, csv_sheet
from equipoise.results.columns import COMPARISON_COLUMNS
from equipoise.results.comparison.condense import (
    CURVES,
    Frame,
    KeptFigures,
    LoadMap,
    round_figure,
)
from equipoise.results.comparison.differences import baseline_row, scheme_differences
from equipoise.results.comparison.rows import ComparisonResults, SchemeRow, SchemeRuns

SMOOTHED_PARTS = 60
"""a line of training is a running mean over one such part of it"""
ByStep = dict[int, float | None]
"""None where a value is missing"""


class Line(TypedDict):
    x: list[int]
    y: list[float | None]


class LineAndDots(Line):
    """Dots of the validation set, and a line of the training batches."""

    label: str
    training: Line


class SchemeFrames(TypedDict):
    """Histograms of one scheme: a frame for each step, in the same bins."""

    label: str
    x: list[float]
    frames: list[Frame]


class SchemeLoads(TypedDict):
    label: str
    layers: list[LoadMap]


class ComparisonFigures(TypedDict):
    """Plotly reads a little HTML in its texts, so labels are escaped."""

    imbalance: list[LineAndDots]
    loss: list[LineAndDots]
    floor: Line
    scores: list[SchemeFrames]
    shifts: list[SchemeFrames]
    loads: list[SchemeLoads]


def comparison_figures(results: ComparisonResults) -> ComparisonFigures:
    some = [scheme for scheme in results.schemes if scheme.runs]
    return {
        "imbalance": [_line_and_dots(scheme, "imbalance") for scheme in some],
        "loss": [_line_and_dots(scheme, "loss") for scheme in some],
        "floor": _chance_line(some),
        "scores": [_scheme_frames(scheme, "scores") for scheme in some if _has(scheme, "scores")],
        "shifts": [_scheme_frames(scheme, "shifts") for scheme in some if _has(scheme, "shifts")],
        "loads": [_scheme_loads(scheme) for scheme in some if _has(scheme, "loads")],
    }


def comparison_sheets(results: ComparisonResults, figures: ComparisonFigures) -> Sheets:
    """Each figure's data as CSV, and the tables'."""
    return {
        "imbalance": _dots_sheet("imbalance", figures["imbalance"]),
        "loss": _dots_sheet("loss", figures["loss"]),
        "scores": _frames_sheet(figures["scores"]),
        "shifts": _frames_sheet(figures["shifts"]),
        "loads": _loads_sheet(figures["loads"]),
        "training": csv_sheet(("scheme", "step", *CURVES), _training_rows(results)),
        "results": results_sheet(results.rows),
        "differences": differences_sheet(results.rows),
    }


def results_sheet(rows: Sequence[SchemeRow]) -> str:
    """A line for each scheme and seed: every figure as it was measured."""
    keys = [column.key for column in COMPARISON_COLUMNS] + ["floor", "seconds"]
    lines = []
    for row in rows:
        seeds = {seed for figure in row.figures.values() for seed in figure.values}
        lines += [
            (row.label, seed, *(row.values_of(key).get(seed) for key in keys))
            for seed in sorted(seeds, key=int)
        ]
    return csv_sheet(("scheme", "seed", *keys), lines)


def differences_sheet(rows: Sequence[SchemeRow]) -> str:
    base = baseline_row(rows)
    labels = {row.name: row.label for row in rows}
    lines = []
    for column in COMPARISON_COLUMNS:
        for name, each in scheme_differences(rows, column.key).items():
            low, high = each.interval or (None, None)
            judged = (len(each.seeds), each.mean, low, high, each.chance, int(each.significant))
            lines.append((column.key, labels[name], base.label if base else "", *judged))
    heading = ("figure", "scheme", "less", "seeds", "mean", "low", "high", "p", "real")
    return csv_sheet(heading, lines)


def _dots_sheet(name: str, series: Sequence[LineAndDots]) -> str:
    rows = [
        (unescape(one["label"]), x, y)
        for one in series
        for x, y in zip(one["x"], one["y"], strict=True)
    ]
    return csv_sheet(("scheme", "step", name), rows)


def _frames_sheet(series: Sequence[SchemeFrames]) -> str:
    rows = [
        (unescape(one["label"]), frame["step"], x, y)
        for one in series
        for frame in one["frames"]
        for x, y in zip(one["x"], frame["y"], strict=True)
    ]
    return csv_sheet(("scheme", "step", "bin centre", "share"), rows)


def _loads_sheet(series: Sequence[SchemeLoads]) -> str:
    rows = [
        (unescape(one["label"]), unescape(layer["name"]), step, expert, value / 100)
        for one in series
        for layer in one["layers"]
        for expert, row in enumerate(layer["z"])
        for step, value in zip(layer["steps"], row, strict=True)
    ]
    return csv_sheet(("scheme", "layer", "step", "expert", "load / target"), rows)


def _training_rows(results: ComparisonResults) -> Iterator[tuple[object, ...]]:
    for scheme in results.schemes:
        found = [_training_curve(scheme, name) for name in CURVES] if scheme.runs else [{}]
        for step in found[0]:
            yield (scheme.label, step, *(each[step] for each in found))


def _line_and_dots(scheme: SchemeRuns, name: str) -> LineAndDots:
    """Dots at the steps that all seeds have."""
    dots = _means_by_step([_evaluations(run["validation"], name) for run in scheme.runs])
    curve = _training_curve(scheme, name)
    smooth = [round_figure(value) for value in _running_mean(list(curve.values()))]
    return {
        "label": escape(scheme.label),
        "x": list(dots),
        "y": list(dots.values()),
        "training": {"x": list(curve), "y": smooth},
    }


def _training_curve(scheme: SchemeRuns, name: str) -> ByStep:
    """A mean over seeds at each step that was kept."""
    curves: list[Any] = [run["training"] for run in scheme.runs]
    return _means_by_step([dict(zip(one["step"], one[name], strict=True)) for one in curves])


def _chance_line(some: Sequence[SchemeRuns]) -> Line:
    """What chance alone leaves of the validation imbalance: of the balanced schemes, which differ
    little in it.
    """
    runs = [run for scheme in some if scheme.row.balanced for run in scheme.runs]
    runs = runs or [run for scheme in some for run in scheme.runs]
    means = _means_by_step([_evaluations(run["validation"], "floor") for run in runs])
    known = {step: value for step, value in means.items() if value is not None}
    return {"x": list(known), "y": list(known.values())}


def _evaluations(rows: Sequence[Mapping[str, Any]], name: str) -> ByStep:
    return {row["step"]: row.get(name) for row in rows}


def _means_by_step(runs: Sequence[ByStep]) -> ByStep:
    """At the steps that all have; None where one has no value."""
    made: ByStep = {}
    for step in sorted(set.intersection(*(set(run) for run in runs))) if runs else []:
        found = [run[step] for run in runs]
        made[step] = None if None in found else round_figure(float(np.mean(found)))  # type: ignore[arg-type]
    return made


def _running_mean(values: Sequence[float | None]) -> list[float | None]:
    """Narrower at the ends; a gap where a value is missing."""
    reach = len(values) // SMOOTHED_PARTS // 2
    around = [values[max(0, n - reach) : n + reach + 1] for n in range(len(values))]
    return [None if None in each else float(np.mean(each)) for each in around]  # type: ignore[arg-type]


def _kept_figures(scheme: SchemeRuns) -> KeptFigures:
    return scheme.runs[0].get("figures", {})


def _has(scheme: SchemeRuns, name: str) -> bool:
    return bool(_kept_figures(scheme).get(name))


def _scheme_frames(scheme: SchemeRuns, name: Literal["scores", "shifts"]) -> SchemeFrames:
    kept = _kept_figures(scheme)[name]
    return {"label": escape(scheme.label), "x": kept["x"], "frames": kept["frames"]}


def _scheme_loads(scheme: SchemeRuns) -> SchemeLoads:
    maps = _kept_figures(scheme)["loads"]
    layers: list[LoadMap] = [{**layer, "name": escape(layer["name"])} for layer in maps]
    return {"label": escape(scheme.label), "layers": layers}
