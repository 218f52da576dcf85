"""condense: as much of a run's curves, histograms, load maps and shifts as a page shows, in few
numbers.

Schemes are drawn side by side, so what they share must look the same: all start from the same
weights. Bins are therefore powers of two wide and begin at the same place in every run, and maps
have columns at even distances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from equipoise.results.run import load_json
from equipoise.trace import Trace, is_trace

POINTS = 300
"""of a curve at most"""
DIGITS = 5
"""more than a figure shows"""
HISTOGRAM_BINS = 128
"""at most"""
MAP_STEPS = 150
"""of a load map at most"""
MAP_CELLS = 100_000
"""of all load maps of a run together; but never fewer than 25 steps"""
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
    shift: NotRequired[list[list[float | None]]]
    """experts by the same steps: the shift under which these loads were counted"""


class KeptFigures(TypedDict):
    scores: NotRequired[Frames]
    shifts: NotRequired[Frames]
    loads: NotRequired[list[LoadMap]]
    batch_floor: NotRequired[float]
    """the imbalance that chance leaves in a training batch whose tokens choose independently"""


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


def condense_trace(folder: Path) -> KeptFigures:
    """A map of loads and shifts for each layer of a trace; and the floor of its batches."""
    if not is_trace(folder):
        return {"loads": []}
    trace = Trace.open(folder)
    layers = [_load_map(trace, name) for name in trace.layers]
    floor = _batch_floor(trace)
    return {"loads": layers} if floor is None else {"loads": layers, "batch_floor": floor}


def even_steps(steps: Sequence[int], most: int = MAP_STEPS) -> list[int]:
    """Steps at even distances, at most so many: a training records some steps out of turn, and maps
    have columns of one width. All of them, where there is no common distance.

    >>> even_steps([6, 12, 13, 18, 24])
    [6, 12, 18, 24]
    """
    gaps = [after - before for before, after in pairwise(steps)]
    if not gaps:
        return list(steps)
    every = max(set(gaps), key=lambda gap: (gaps.count(gap), -gap))
    even = [step for step in steps if (step - steps[0]) % every == 0]
    kept = even if 2 * len(even) > len(steps) else list(steps)
    return kept[:: max(1, -(-len(kept) // most))]


def rebin(shares: np.ndarray, own: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Counts or shares in bins with edges `own` as they fall into `edges`: what a bin of the one
    has is spread evenly over it. The sum stays, if `edges` reach as far.
    """
    total = np.concatenate([[0.0], np.cumsum(shares)])
    return np.diff(np.interp(edges, own, total))


def _load_map(trace: Trace, name: str) -> LoadMap:
    steps = trace.steps(name)
    if not steps:
        return {"name": name, "steps": [], "z": [], "shift": []}
    cells = len(trace.layers) * len(trace.loads(name, steps[0]))
    steps = even_steps(steps, min(MAP_STEPS, max(25, MAP_CELLS // cells)))
    wanted = set(steps)
    records = [record for record in trace.updates(name) if record.step in wanted]
    counted = np.stack([record.loads for record in records]).astype(float)
    relative = counted / (counted.mean(1, keepdims=True) * _target_weights(trace))
    shift = np.stack([record.shift for record in records]).T.tolist()
    return {
        "name": name,
        "steps": steps,
        "z": np.rint(100 * relative.T).astype(int).tolist(),
        "shift": [[_short_shift(value) for value in row] for row in shift],
    }


def _short_shift(value: float) -> float | None:
    """To three digits: a line on a page shows no more."""
    return float(f"{value:.3g}") if math.isfinite(value) else None


def _target_weights(trace: Trace) -> np.ndarray:
    """(E) with mean 1, or one number if they are equal."""
    weights = np.asarray(trace.target or (1.0,), float)
    return weights / weights.mean()


def _batch_floor(trace: Trace) -> float | None:
    """sqrt(2/pi (1 - q_k) / (T q_k)), mean over experts: with q_k the share of the T tokens that
    expert k should have. Tokens of a text are alike, so a batch of text has somewhat more.
    """
    steps = trace.steps(trace.layers[0])
    if not steps:
        return None
    loads = trace.loads(trace.layers[0], steps[0])
    tokens = loads.sum() / trace.top_k
    share = np.minimum(1.0, loads.mean() * _target_weights(trace) / tokens)
    return round_figure(float(np.sqrt(2 / np.pi * (1 - share) / (tokens * share)).mean()))


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


def _bin_width(reach: float, bins: int) -> float:
    """A power of two, so that the bins of two runs fit into each other."""
    return float(2.0 ** math.ceil(math.log2(reach / bins)))


def _score_density(steps: list[LayerHistograms]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Layers were counted in bins of their own width."""
    reach = max(layer["scores"]["to"] for layers in steps for layer in layers) or 1.0
    width = _bin_width(reach, HISTOGRAM_BINS)
    edges = width * np.arange(math.ceil(reach / width) + 1)
    shares = []
    for layers in steps:
        total = np.zeros(len(edges) - 1)
        for layer in layers:
            counts = np.asarray(layer["scores"]["counts"], float)
            total += rebin(counts, np.linspace(0, layer["scores"]["to"], len(counts) + 1), edges)
        shares.append(total / max(total.sum(), 1))
    return edges, shares


def _shift_density(steps: list[LayerHistograms]) -> tuple[np.ndarray, list[np.ndarray]]:
    values = [np.concatenate([layer["shift"] for layer in layers]) for layers in steps]
    reach = max(float(np.abs(each).max()) for each in values) or 1e-3
    width = _bin_width(2 * reach, HISTOGRAM_BINS)
    # 0 is the middle of a bin
    side = math.ceil(reach / width)
    edges = width * (np.arange(2 * side + 2) - side - 0.5)
    return edges, [np.histogram(each, edges)[0] / each.size for each in values]
