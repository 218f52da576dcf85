"""Each figure's data as CSV, and the tables': they lie beside the page and behind its buttons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import unescape

from equipoise.report.comparison.curves import SchemeCurve, mean_training
from equipoise.report.comparison.figures import ComparisonFigures
from equipoise.report.comparison.maps import Ridges, SchemeLoads
from equipoise.report.sheets import Sheets, csv_sheet
from equipoise.results.columns import COMPARISON_COLUMNS
from equipoise.results.comparison.condense import CURVES
from equipoise.results.comparison.differences import baseline_row, scheme_differences
from equipoise.results.comparison.rows import ComparisonResults, SchemeRow

PRICE_KEYS = ("label", "gap", "gap_spread", "over", "over_spread")


def comparison_sheets(results: ComparisonResults, figures: ComparisonFigures) -> Sheets:
    """By the name of the figure or table."""
    return {
        "imbalance": _curves_sheet("imbalance", figures["imbalance"]),
        "loss": _curves_sheet("loss", figures["loss"]),
        "loss-difference": _curves_sheet("difference", figures["difference"]),
        "scores": _ridges_sheet(figures["scores"]),
        "shifts": _ridges_sheet(figures["shifts"]),
        "loads": _loads_sheet(figures["loads"]),
        "violation": _violation_sheet(figures["loads"]),
        "layer": _paths_sheet(figures["loads"]),
        "price": csv_sheet(
            ("scheme", "dual gap (%)", "spread", "imbalance / chance", "spread"),
            [
                [unescape(str(point[key])) if key == "label" else point[key] for key in PRICE_KEYS]  # type: ignore[literal-required]
                for point in figures["price"]
            ],
        ),
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


def _curves_sheet(name: str, series: Sequence[SchemeCurve]) -> str:
    rows = []
    for one in series:
        for kind, band in (("training", one["training"]), ("validation", one["validation"])):
            ends = zip(band["low"], band["high"], strict=True) if band["low"] else None
            for x, y in zip(band["x"], band["y"], strict=True):
                low, high = next(ends) if ends else (None, None)
                rows.append((unescape(one["label"]), kind, x, y, low, high))
    return csv_sheet(("scheme", "of", "step", name, "low", "high"), rows)


def _ridges_sheet(ridges: Ridges) -> str:
    rows = [
        (unescape(one["label"]), frame["step"], x, y)
        for one in ridges["schemes"]
        for frame in one["frames"]
        for x, y in zip(ridges["x"], frame["y"], strict=True)
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


def _violation_sheet(series: Sequence[SchemeLoads]) -> str:
    rows = [
        (unescape(one["label"]), unescape(layer["name"]), step, max(loads) / 100 - 1)
        for one in series
        for layer in one["layers"]
        for step, loads in zip(layer["steps"], zip(*layer["z"], strict=True), strict=True)
    ]
    return csv_sheet(("scheme", "layer", "step", "max violation"), rows)


def _paths_sheet(series: Sequence[SchemeLoads]) -> str:
    rows = [
        (unescape(one["label"]), unescape(layer["name"]), step, expert, value)
        for one in series
        for layer in one["layers"]
        for expert, row in enumerate(layer.get("shift", []))
        for step, value in zip(layer["steps"], row, strict=True)
    ]
    return csv_sheet(("scheme", "layer", "step", "expert", "shift"), rows)


def _training_rows(results: ComparisonResults) -> Iterator[tuple[object, ...]]:
    for scheme in results.schemes:
        found = [mean_training(scheme, name) for name in CURVES] if scheme.runs else [{}]
        for step in found[0]:
            yield (scheme.label, step, *(each[step] for each in found))
