"""The figures' data: what the page draws, and the same as CSV.

A figure is a dict that page.js knows how to draw. Histograms and heat maps show each scheme's first seed; lines are means over
seeds.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from html import escape, unescape
from typing import Any

import numpy as np

from equipoise.report.read import Results, Series, histograms, validation
from equipoise.trace import Trace

BINS = 48
COLUMNS = 150  # steps of a heat map at most


def figures(results: Results) -> dict[str, Any]:
    """Plotly reads a little HTML in its texts, so labels are escaped here."""
    some = [series for series in results.series if series.runs]
    return {
        "imbalance": [_line(series, "imbalance") for series in some],
        "loss": [_line(series, "loss") for series in some],
        "scores": [_frames(series, _score_density) for series in some if histograms(series.runs[0])],
        "shifts": [_frames(series, _shift_density) for series in some if histograms(series.runs[0])],
        "loads": [_loads(series) for series in some if (series.runs[0] / "trace" / "trace.json").exists()],
    }


def tables(made: dict[str, Any]) -> dict[str, str]:
    """Each figure's data as CSV."""
    lines = {
        name: [(unescape(one["label"]), x, y) for one in made[name] for x, y in zip(one["x"], one["y"], strict=True)]
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
        **{name: _csv(("scheme", "step", name), rows) for name, rows in lines.items()},
        **{name: _csv(("scheme", "step", "bin centre", "share"), rows) for name, rows in bars.items()},
        "loads": _csv(("scheme", "layer", "step", "expert", "load / target"), heat),
    }


def _line(series: Series, name: str) -> dict[str, Any]:
    runs = [{row["step"]: row[name] for row in validation(run)} for run in series.runs]
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    values = [float(np.mean([run[step] for run in runs])) for step in steps]
    return {"label": escape(series.label), "x": steps, "y": [round(value, 5) for value in values]}


def _frames(series: Series, density: Any) -> dict[str, Any]:
    """A histogram for each step, on the same bins for all steps, over all layers."""
    kept = histograms(series.runs[0])
    edges, shares = density([list(step["layers"].values()) for step in kept])
    frames = [{"step": step["step"], "y": np.round(y, 6).tolist()} for step, y in zip(kept, shares, strict=True)]
    return {
        "label": escape(series.label),
        "x": np.round((edges[1:] + edges[:-1]) / 2, 6).tolist(),
        "frames": frames,
    }


def _score_density(steps: list[list[dict[str, Any]]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Layers were counted in bins of their own width: each goes to the common bin its centre lies in."""
    edges = np.linspace(0, max(layer["scores"]["to"] for layers in steps for layer in layers) or 1.0, BINS + 1)
    shares = []
    for layers in steps:
        total = np.zeros(BINS)
        for layer in layers:
            counts = np.asarray(layer["scores"]["counts"], float)
            own = np.linspace(0, layer["scores"]["to"], len(counts) + 1)
            total += np.histogram((own[1:] + own[:-1]) / 2, edges, weights=counts)[0]
        shares.append(total / max(total.sum(), 1))
    return edges, shares


def _shift_density(steps: list[list[dict[str, Any]]]) -> tuple[np.ndarray, list[np.ndarray]]:
    values = [np.concatenate([layer["shift"] for layer in layers]) for layers in steps]
    reach = max(float(np.abs(each).max()) for each in values) or 1e-3
    edges = np.linspace(-reach, reach, BINS + 2)  # an odd number of bins, so that 0 is the middle of one
    return edges, [np.histogram(each, edges)[0] / each.size for each in values]


def _loads(series: Series) -> dict[str, Any]:
    """Hundredths of the target load: whole numbers are short in the page."""
    trace = Trace.open(series.runs[0] / "trace")
    layers = []
    for name in trace.layers:
        steps = trace.steps(name)
        steps = steps[:: max(1, -(-len(steps) // COLUMNS))]
        loads = np.stack([trace.record(name, step).loads for step in steps]).astype(float)
        relative = loads / loads.mean(1, keepdims=True)
        layers.append({"name": escape(name), "steps": steps, "z": np.rint(100 * relative.T).astype(int).tolist()})
    return {"label": escape(series.label), "layers": layers}


def _csv(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    return text.getvalue()
