"""Lines of a comparison over the steps: imbalance with its floors, and loss as a difference.

A line is a mean over seeds of running means. Its band tells what seeds do: of imbalance and loss
from the lowest to the highest seed; of a difference its 95% interval, paired by seed as in the
tables (results/comparison/differences.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypedDict

import numpy as np

from equipoise.results.comparison.condense import round_figure
from equipoise.results.comparison.differences import SIGNIFICANCE, baseline_row
from equipoise.results.comparison.rows import ComparisonResults, SchemeRuns

SMOOTHED_PARTS = 60
"""a line of training is a running mean over one such part of it"""
ByStep = dict[int, float | None]
"""None where a value is missing"""


class Band(TypedDict):
    """Values over steps, with the ends of a band; empty ends where there is one seed."""

    x: list[int]
    y: list[float | None]
    low: list[float | None]
    high: list[float | None]


class SchemeCurve(TypedDict):
    """Plotly reads a little HTML in its texts, so labels are escaped."""

    scheme: str
    label: str
    training: Band
    """of the training batches, smoothed"""
    validation: Band
    """of the evaluations"""


class FloorLevel(TypedDict):
    """What chance alone leaves of the imbalance."""

    label: str
    y: float


def scheme_curve(scheme: SchemeRuns, name: str) -> SchemeCurve:
    """Of every seed; at the steps that all have."""
    training = [_smoothed(training_values(run, name)) for run in scheme.runs]
    return {
        "scheme": scheme.row.name,
        "label": escape(scheme.label),
        "training": _range_band(training),
        "validation": _range_band([_evaluations(run, name) for run in scheme.runs]),
    }


def loss_differences(results: ComparisonResults) -> list[SchemeCurve]:
    """Each scheme's loss less that of the scheme others are compared with."""
    base = baseline_row(results.rows)
    if base is None:
        return []
    theirs = next(scheme for scheme in results.schemes if scheme.row is base)
    found = []
    for scheme in results.schemes:
        if scheme.row is base or not scheme.runs:
            continue
        pairs = [
            (run, other)
            for run in scheme.runs
            for other in theirs.runs
            if run["seed"] == other["seed"]
        ]
        if pairs:
            found.append(_difference_curve(scheme, pairs))
    return found


def chance_floors(some: Sequence[SchemeRuns]) -> list[FloorLevel]:
    """Of a training batch, if runs kept it, and of the validation set after the last step: means
    over the balanced schemes, which differ little in them.
    """
    runs = [run for scheme in some if scheme.row.balanced for run in scheme.runs]
    runs = runs or [run for scheme in some for run in scheme.runs]
    batch = [run.get("figures", {}).get("batch_floor") for run in runs]
    last = [run["result"].get("floor") for run in runs]
    levels = {
        "chance, a training batch of independent tokens": batch,
        "chance, validation set": last,
    }
    found: list[FloorLevel] = []
    for label, values in levels.items():
        known = [value for value in values if value]
        if known and (level := round_figure(float(np.mean(known)))):
            found.append({"label": label, "y": level})
    return found


def training_values(run: Mapping[str, Any], name: str) -> ByStep:
    return dict(zip(run["training"]["step"], run["training"][name], strict=True))


def mean_training(scheme: SchemeRuns, name: str) -> ByStep:
    """Unsmoothed, mean over seeds."""
    band = _range_band([training_values(run, name) for run in scheme.runs])
    return dict(zip(band["x"], band["y"], strict=True))


def _evaluations(run: Mapping[str, Any], name: str) -> ByStep:
    return {row["step"]: row.get(name) for row in run["validation"]}


def _difference_curve(scheme: SchemeRuns, pairs: Sequence[tuple[Any, Any]]) -> SchemeCurve:
    training = [
        _smoothed(_less(training_values(run, "loss"), training_values(other, "loss")))
        for run, other in pairs
    ]
    validation = [
        _less(_evaluations(run, "loss"), _evaluations(other, "loss")) for run, other in pairs
    ]
    return {
        "scheme": scheme.row.name,
        "label": escape(scheme.label),
        "training": _interval_band(training),
        "validation": _interval_band(validation),
    }


def _less(ours: ByStep, theirs: ByStep) -> ByStep:
    found: ByStep = {}
    for step in sorted(ours.keys() & theirs.keys()):
        mine, other = ours[step], theirs[step]
        found[step] = None if mine is None or other is None else mine - other
    return found


def _range_band(runs: Sequence[ByStep]) -> Band:
    """Mean, lowest and highest."""
    steps, table = _common_table(runs)
    several = len(runs) > 1
    return {
        "x": steps,
        "y": _rounded_list(table.mean(0)),
        "low": _rounded_list(table.min(0)) if several else [],
        "high": _rounded_list(table.max(0)) if several else [],
    }


def _interval_band(runs: Sequence[ByStep]) -> Band:
    """Mean, and the 95% interval of the mean by Student's law."""
    steps, table = _common_table(runs)
    mean, number = table.mean(0), len(runs)
    band: Band = {"x": steps, "y": _rounded_list(mean), "low": [], "high": []}
    if number > 1:
        from scipy.special import stdtrit

        reach = stdtrit(number - 1, 1 - SIGNIFICANCE / 2) / np.sqrt(number)
        half = reach * table.std(0, ddof=1)
        band["low"], band["high"] = _rounded_list(mean - half), _rounded_list(mean + half)
    return band


def _common_table(runs: Sequence[ByStep]) -> tuple[list[int], np.ndarray]:
    """(runs, steps) at the steps that all have; NaN where a value is missing."""
    steps = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    rows = [[np.nan if (value := run[step]) is None else value for step in steps] for run in runs]
    return steps, np.asarray(rows, float).reshape(len(runs), len(steps))


def _rounded_list(values: np.ndarray) -> list[float | None]:
    return [round_figure(float(value)) for value in values]


def _smoothed(curve: ByStep) -> ByStep:
    """A running mean, narrower at the ends; a gap where a value is missing."""
    values, reach = list(curve.values()), len(curve) // SMOOTHED_PARTS // 2
    around = [values[max(0, n - reach) : n + reach + 1] for n in range(len(values))]
    means = [None if None in each else float(np.mean(each)) for each in around]  # type: ignore[arg-type]
    return dict(zip(curve, means, strict=True))
