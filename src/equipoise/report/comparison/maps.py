"""Load maps and histograms of a comparison, brought to what schemes share: even columns, the same
bins and the same axes. They show each scheme's first finished seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal, TypedDict

import numpy as np

from equipoise.results.comparison.condense import (
    Frame,
    Frames,
    KeptFigures,
    LoadMap,
    even_steps,
    rebin,
)
from equipoise.results.comparison.rows import SchemeRuns

SHOWN_MASS = 0.998
"""of the scores of every step: the few above would squeeze the others"""


class SchemeLoads(TypedDict):
    scheme: str
    label: str
    layers: list[LoadMap]


class SchemeFrames(TypedDict):
    scheme: str
    label: str
    frames: list[Frame]


class Ridges(TypedDict):
    """Histograms of all schemes in the same bins."""

    x: list[float]
    """centres of the bins"""
    steps: list[int]
    above: float
    """the largest share of a step's values that lies above the last bin"""
    schemes: list[SchemeFrames]


def kept_figures(scheme: SchemeRuns) -> KeptFigures:
    return scheme.runs[0].get("figures", {}) if scheme.runs else {}


def scheme_loads(scheme: SchemeRuns) -> SchemeLoads:
    layers = [_even_columns(layer) for layer in kept_figures(scheme).get("loads", [])]
    return {"scheme": scheme.row.name, "label": escape(scheme.label), "layers": layers}


def common_ridges(some: Sequence[SchemeRuns], name: Literal["scores", "shifts"]) -> Ridges:
    """Of the schemes that kept such histograms; shifts only of those that have a shift."""
    found: list[tuple[SchemeRuns, Frames]] = []
    for scheme in some:
        frames = kept_figures(scheme).get(name)
        if frames and (name == "scores" or _ever_moves(frames)):
            found.append((scheme, frames))
    if not found:
        return {"x": [], "steps": [], "above": 0.0, "schemes": []}
    edges = _common_edges([frames for _, frames in found], centred=name == "shifts")
    steps = sorted({frame["step"] for _, frames in found for frame in frames["frames"]})
    rebinned = [(scheme, _rebinned(frames, edges)) for scheme, frames in found]
    last = len(edges) - 1 if name == "shifts" else _shown_bins([each for _, each in rebinned])
    above = max(1 - sum(y[:last]) for _, each in rebinned for y in each.values())
    return {
        "x": [float(f"{x:.7g}") for x in ((edges[1:] + edges[:-1]) / 2)[:last]],
        "steps": steps,
        "above": float(f"{max(0.0, above):.2g}"),
        "schemes": [
            {
                "scheme": scheme.row.name,
                "label": escape(scheme.label),
                "frames": [
                    {"step": step, "y": np.round(y[:last], 5).tolist()} for step, y in each.items()
                ],
            }
            for scheme, each in rebinned
        ],
    }


def _even_columns(layer: LoadMap) -> LoadMap:
    """Maps that earlier versions kept have a few columns out of turn."""
    kept = set(even_steps(layer["steps"]))
    places = [n for n, step in enumerate(layer["steps"]) if step in kept]
    made: LoadMap = {
        "name": escape(layer["name"]),
        "steps": [layer["steps"][n] for n in places],
        "z": [[row[n] for n in places] for row in layer["z"]],
    }
    if "shift" in layer:
        made["shift"] = [[row[n] for n in places] for row in layer["shift"]]
    return made


def _ever_moves(frames: Frames) -> bool:
    """Whether some shift is not 0: not all of it is in the bin in the middle."""
    middle = int(np.argmin(np.abs(frames["x"])))
    return any(frame["y"][middle] < 0.9999 for frame in frames["frames"])


def _edges_of(frames: Frames) -> np.ndarray:
    centres = np.asarray(frames["x"])
    half = (centres[1] - centres[0]) / 2
    return np.append(centres - half, centres[-1] + half)


def _common_edges(every: Sequence[Frames], *, centred: bool) -> np.ndarray:
    """As wide as the widest bins, and as far as the farthest. Scores begin at 0; shifts have 0 in
    the middle of a bin.
    """
    own = [_edges_of(frames) for frames in every]
    width = max(edges[1] - edges[0] for edges in own)
    low, high = min(edges[0] for edges in own), max(edges[-1] for edges in own)
    if not centred:
        return np.asarray(width * np.arange(np.ceil(high / width - 1e-6) + 1))
    side = int(np.ceil(max(-low, high) / width - 0.5 - 1e-6))
    return np.asarray(width * (np.arange(2 * side + 2) - side - 0.5))


def _rebinned(frames: Frames, edges: np.ndarray) -> dict[int, np.ndarray]:
    own = _edges_of(frames)
    return {
        frame["step"]: rebin(np.asarray(frame["y"], float), own, edges)
        for frame in frames["frames"]
    }


def _shown_bins(every: Sequence[dict[int, np.ndarray]]) -> int:
    reached = [
        int(np.searchsorted(np.cumsum(y), SHOWN_MASS)) for each in every for y in each.values()
    ]
    return min(max(reached) + 1, max(len(y) for each in every for y in each.values()))
