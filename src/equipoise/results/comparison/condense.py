"""condense: as much of a run's curves, histograms and load maps as a page shows, in few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from equipoise.results.run import load_json
from equipoise.trace import Trace, is_trace

POINTS = 300
"""of a curve at most"""
DIGITS = 5
"""more than a figure shows"""
HISTOGRAM_BINS = 48
MAP_STEPS = 150
"""of a load map at most"""
CURVES = ("imbalance", "idle_share", "loss")
LayerHistograms = list[dict[str, Any]]
"""of one step: `scores` and `shift` of each layer, as the training wrote them"""


class Curves(TypedDict):
    """The training step by step; None is a gap."""

    step: list[int]
    imbalance: list[float | None]
    idle_share: list[float | None]
    loss: list[float | None]


class Frame(TypedDict):
    """A histogram at one step."""

    step: int
    y: list[float]


class Frames(TypedDict):
    """Histograms of several steps, in the same bins."""

    x: list[float]
    """centres of the bins"""
    frames: list[Frame]


class LoadMap(TypedDict):
    """A layer's loads: experts by steps, in hundredths of the target load, as whole numbers are
    short.
    """

    name: str
    steps: list[int]
    z: list[list[int]]


class KeptFigures(TypedDict):
    scores: NotRequired[Frames]
    shifts: NotRequired[Frames]
    loads: NotRequired[list[LoadMap]]


def round_figure(value: float | None) -> float | None:
    """To five digits. What is not finite has no place in a figure."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def condense_curves(rows: Sequence[Mapping[str, Any]]) -> Curves:
    """From the steps of metrics.jsonl: means of blocks of steps, so that the mean over a curve is
    that over the training.
    """
    size = max(1, -(-len(rows) // POINTS))
    blocks = [rows[n : n + size] for n in range(0, len(rows), size)]
    imbalance, idle_share, loss = (
        [_block_mean([row.get(name) for row in block]) for block in blocks] for name in CURVES
    )
    steps = [block[-1]["step"] for block in blocks]
    return {"step": steps, "imbalance": imbalance, "idle_share": idle_share, "loss": loss}


def condense_histograms(run: Path) -> KeptFigures:
    """Of scores and shifts: shares in the same bins for all steps, over all layers."""
    kept = [load_json(path) for path in sorted((run / "histograms").glob("step-*.json"))]
    if not kept:
        return {}
    return {"scores": _frames_of(kept, _score_density), "shifts": _frames_of(kept, _shift_density)}


def condense_loads(run: Path) -> list[LoadMap]:
    """A map for each layer of the run's trace."""
    if not is_trace(run / "trace"):
        return []
    trace = Trace.open(run / "trace")
    layers: list[LoadMap] = []
    for name in trace.layers:
        steps = trace.steps(name)
        steps = steps[:: max(1, -(-len(steps) // MAP_STEPS))]
        counted = np.stack([trace.loads(name, step) for step in steps]).astype(float)
        relative = counted / counted.mean(1, keepdims=True)
        z = np.rint(100 * relative.T).astype(int).tolist()
        layers.append({"name": name, "steps": steps, "z": z})
    return layers


def _block_mean(values: list[float | None]) -> float | None:
    return None if None in values else round_figure(float(np.mean(values)))  # type: ignore[arg-type]


def _frames_of(
    kept: Sequence[Mapping[str, Any]],
    density: Callable[[list[LayerHistograms]], tuple[np.ndarray, list[np.ndarray]]],
) -> Frames:
    edges, shares = density([list(step["layers"].values()) for step in kept])
    frames: list[Frame] = [
        {"step": step["step"], "y": np.round(y, 5).tolist()}
        for step, y in zip(kept, shares, strict=True)
    ]
    # seven digits: with fewer, bars would not touch
    centres = [float(f"{x:.7g}") for x in (edges[1:] + edges[:-1]) / 2]
    return {"x": centres, "frames": frames}


def _score_density(steps: list[LayerHistograms]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Layers were counted in bins of their own width: each goes to the common bin its centre lies
    in.
    """
    edges = np.linspace(
        0,
        max(layer["scores"]["to"] for layers in steps for layer in layers) or 1.0,
        HISTOGRAM_BINS + 1,
    )
    shares = []
    for layers in steps:
        total = np.zeros(HISTOGRAM_BINS)
        for layer in layers:
            counts = np.asarray(layer["scores"]["counts"], float)
            own = np.linspace(0, layer["scores"]["to"], len(counts) + 1)
            total += np.histogram((own[1:] + own[:-1]) / 2, edges, weights=counts)[0]
        shares.append(total / max(total.sum(), 1))
    return edges, shares


def _shift_density(steps: list[LayerHistograms]) -> tuple[np.ndarray, list[np.ndarray]]:
    values = [np.concatenate([layer["shift"] for layer in layers]) for layers in steps]
    reach = max(float(np.abs(each).max()) for each in values) or 1e-3
    # an odd number of bins, so that 0 is the middle of one
    edges = np.linspace(-reach, reach, HISTOGRAM_BINS + 2)
    return edges, [np.histogram(each, edges)[0] / each.size for each in values]
