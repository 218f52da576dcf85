"""thin: as much of a run's curves, histograms and load maps as a page shows, in few numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.trace import Trace, is_trace

POINTS = 300  # of a curve at most
DIGITS = 5
BINS = 48
MAP_STEPS = 150  # of a load map at most
CURVES = ("imbalance", "idle_share", "loss")
Layers = list[dict[str, Any]]


def short(value: float | None) -> float | None:
    """Five digits are more than a figure shows. What is not finite has no place in one."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The training step by step: means of blocks of steps, so that the mean over a curve is that
    over the training.
    """
    size = max(1, -(-len(rows) // POINTS))
    blocks = [rows[n : n + size] for n in range(0, len(rows), size)]
    return {
        "step": [block[-1]["step"] for block in blocks],
        **{name: [_mean([row.get(name) for row in block]) for block in blocks] for name in CURVES},
    }


def histograms(run: Path) -> dict[str, Any]:
    """Of scores and shifts: shares in the same bins for all steps, over all layers."""
    kept = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((run / "histograms").glob("step-*.json"))
    ]
    if not kept:
        return {}
    return {"scores": _frames(kept, _score_density), "shifts": _frames(kept, _shift_density)}


def loads(run: Path) -> list[dict[str, Any]]:
    """For each layer a map of experts by steps, in hundredths of the target load: whole numbers are
    short.
    """
    if not is_trace(run / "trace"):
        return []
    trace = Trace.open(run / "trace")
    layers = []
    for name in trace.layers:
        steps = trace.steps(name)
        steps = steps[:: max(1, -(-len(steps) // MAP_STEPS))]
        counted = np.stack([trace.loads(name, step) for step in steps]).astype(float)
        relative = counted / counted.mean(1, keepdims=True)
        layers.append(
            {"name": name, "steps": steps, "z": np.rint(100 * relative.T).astype(int).tolist()}
        )
    return layers


def _mean(values: list[float | None]) -> float | None:
    return None if None in values else short(float(np.mean(values)))  # type: ignore[arg-type]


def _frames(
    kept: list[dict[str, Any]], density: Callable[..., tuple[np.ndarray, list[np.ndarray]]]
) -> dict[str, Any]:
    edges, shares = density([list(step["layers"].values()) for step in kept])
    frames = [
        {"step": step["step"], "y": np.round(y, 5).tolist()}
        for step, y in zip(kept, shares, strict=True)
    ]
    centres = [
        float(f"{x:.7g}") for x in (edges[1:] + edges[:-1]) / 2
    ]  # rounded more, bars would not touch
    return {"x": centres, "frames": frames}


def _score_density(steps: list[Layers]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Layers were counted in bins of their own width: each goes to the common bin its centre lies
    in.
    """
    edges = np.linspace(
        0, max(layer["scores"]["to"] for layers in steps for layer in layers) or 1.0, BINS + 1
    )
    shares = []
    for layers in steps:
        total = np.zeros(BINS)
        for layer in layers:
            counts = np.asarray(layer["scores"]["counts"], float)
            own = np.linspace(0, layer["scores"]["to"], len(counts) + 1)
            total += np.histogram((own[1:] + own[:-1]) / 2, edges, weights=counts)[0]
        shares.append(total / max(total.sum(), 1))
    return edges, shares


def _shift_density(steps: list[Layers]) -> tuple[np.ndarray, list[np.ndarray]]:
    values = [np.concatenate([layer["shift"] for layer in layers]) for layers in steps]
    reach = max(float(np.abs(each).max()) for each in values) or 1e-3
    edges = np.linspace(
        -reach, reach, BINS + 2
    )  # an odd number of bins, so that 0 is the middle of one
    return edges, [np.histogram(each, edges)[0] / each.size for each in values]
