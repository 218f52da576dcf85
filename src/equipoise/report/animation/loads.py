"""loads: the loads of a training, expert by step, as a picture that fills up column by column.

    animate_loads("runs/a", "loads.gif")          one training, finished or not: its trace is read
    animate_loads("results", "loads.gif")         a comparison: a panel for each scheme
    animate_loads("runs/a", "loads.png")          the last frame alone

All panels show the same layer, that in which the fullest experts are fullest over the training, on
the scale of the pages' heat maps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equipoise.drawing.canvas import GLYPH_HEIGHT, Canvas, text_width
from equipoise.drawing.palette import (
    LINE,
    MUTE,
    load_colors,
    load_palette,
    scheme_place,
)
from equipoise.drawing.scale import draw_load_scale
from equipoise.report.animation.files import encode_gif, encode_png
from equipoise.results.comparison.condense import LoadMap, condense_trace, even_steps
from equipoise.results.comparison.rows import read_comparison
from equipoise.results.scheme_style import style_of_scheme
from equipoise.storage.atomic import write_bytes
from equipoise.trace import Trace, is_trace

PANEL_WIDTH, PANEL_HEIGHT = 360, 128
"""of a map, about: cells are whole pixels; a single map is twice as large"""
MARGIN, TITLE, FOOT = 16, 52, 44
FRAME_TIME, LAST_TIME = 8, 250
"""hundredths of a second"""


class LoadPanel(NamedTuple):
    """One training: its scheme, and a map for each layer."""

    scheme: str
    label: str
    layers: list[LoadMap]


class PanelPlace(NamedTuple):
    """Where a panel's cells are, in pixels; small text is `scale` pixels for each of a letter's."""

    x: int
    y: int
    cell_width: int
    cell_height: int
    scale: int


def animate_loads(path: str | Path, out: str | Path) -> Path:
    """Draw the loads of a training or a comparison. Returns the file.

    Args:
        path: a run's folder or its trace, a comparison's folder or its rows.json.
        out: a .gif, which moves, or a .png, which shows the whole training.
    """
    out = Path(out)
    if out.suffix.lower() not in (".gif", ".png"):
        raise ValueError(f"loads are drawn as .gif (moving) or .png (still), not {out.name!r}")
    panels = read_panels(Path(path))
    if not panels:
        raise ValueError(f"{path} has no recorded loads: train with --trace-every 1 or more")
    frames = list(draw_frames(panels))
    if out.suffix.lower() == ".png":
        write_bytes(out, encode_png(frames[-1], load_palette()))
    else:
        times = [FRAME_TIME] * (len(frames) - 1) + [LAST_TIME]
        write_bytes(out, encode_gif(frames, load_palette(), times))
    return out


def read_panels(path: Path) -> list[LoadPanel]:
    """Those with recorded loads. A run's trace is read as it is, so it need not have finished."""
    traces = [folder for folder in (path, path / "trace") if is_trace(folder)]
    if traces:
        scheme = str(Trace.open(traces[0]).about.get("balancer") or path.resolve().name)
        found = [LoadPanel(scheme, scheme, condense_trace(traces[0]).get("loads", []))]
    else:
        found = [
            LoadPanel(each.row.name, each.label, each.runs[0].get("figures", {}).get("loads", []))
            for each in read_comparison(path).schemes
            if each.runs
        ]
    return [panel for panel in found if any(layer["steps"] for layer in panel.layers)]


def worst_layer(panels: list[LoadPanel]) -> int:
    """Where the fullest expert's load, mean over steps, is largest under any scheme."""
    fullest = [
        [_loads_of(layer).max(0).mean() if layer["steps"] else 0.0 for layer in panel.layers]
        for panel in panels
    ]
    number = min(len(each) for each in fullest)
    return int(np.max([each[:number] for each in fullest], axis=0).argmax())


def draw_frames(panels: list[LoadPanel]) -> Iterator[np.ndarray]:
    """(height, width) uint8 each: a column more in every frame."""
    worst = worst_layer(panels)
    maps = [_even_map(panel.layers[worst]) for panel in panels]
    canvas, places = _empty_panels(panels, maps)
    for number in range(max(len(each["steps"]) for each in maps)):
        for place, each in zip(places, maps, strict=True):
            _draw_column(canvas, place, each, number)
        longest = max(maps, key=lambda each: len(each["steps"]))
        _write_step(canvas, longest["steps"][number], longest["steps"][-1], places[0].scale)
        yield canvas.pixels.copy()


def _even_map(layer: LoadMap) -> LoadMap:
    kept = set(even_steps(layer["steps"]))
    places = [n for n, step in enumerate(layer["steps"]) if step in kept]
    z = [[row[n] for n in places] for row in layer["z"]]
    return {"name": layer["name"], "steps": [layer["steps"][n] for n in places], "z": z}


def _loads_of(layer: LoadMap) -> np.ndarray:
    return np.asarray(layer["z"], float) / 100


def _empty_panels(panels: list[LoadPanel], maps: list[LoadMap]) -> tuple[Canvas, list[PanelPlace]]:
    """Titles, frames, axes and the scale; panels in two columns, equal in size."""
    steps, experts = max(len(each["steps"]) for each in maps), max(len(each["z"]) for each in maps)
    columns, scale = (1, 2) if len(maps) == 1 else (2, 1)
    wide = max(2, scale * PANEL_WIDTH // steps)
    tall = max(2, scale * PANEL_HEIGHT // experts)
    left = text_width(f"{experts - 1} ", scale)
    across, down = left + wide * steps + MARGIN, tall * experts + TITLE
    rows = -(-len(maps) // columns)
    canvas = Canvas(MARGIN + columns * across, MARGIN + rows * down + scale * FOOT)
    places = []
    for number, (panel, each) in enumerate(zip(panels, maps, strict=True)):
        x = MARGIN + number % columns * across
        y = MARGIN + number // columns * down
        canvas.fill_box(x, y, 14, 14, scheme_place(style_of_scheme(panel.scheme).color))
        canvas.write_text(panel.label, x + 22, y)
        place = PanelPlace(x + left, y + 24, wide, tall, scale)
        _draw_axes(canvas, place, each)
        places.append(place)
    _draw_foot(canvas, f"{maps[0]['name']}: load over target, expert by step", scale)
    return canvas, places


def _draw_axes(canvas: Canvas, place: PanelPlace, each: LoadMap) -> None:
    """The frame; the first and the last expert, and the first, a middle and the last step."""
    x, y, wide, tall, scale = place
    steps, experts = each["steps"], len(each["z"])
    right, bottom = x + wide * len(steps), y + tall * experts
    canvas.fill_box(x - 1, y - 1, right - x + 2, bottom - y + 2, LINE)
    for expert in {0, experts - 1}:
        middle = y + tall * expert + (tall - GLYPH_HEIGHT * scale) // 2
        width = text_width(f"{expert} ", scale)
        canvas.write_text(str(expert), x - width + scale, max(y, middle), MUTE, scale=scale)
    half = len(steps) // 2
    ends = (text_width(f"step {steps[0]}  ", scale), text_width(f"  {steps[-1]}", scale))
    canvas.write_text(f"step {steps[0]}", x, bottom + 4, MUTE, scale=scale)
    if len(steps) > 1:
        last = str(steps[-1])
        canvas.write_text(last, right - text_width(last, scale), bottom + 4, MUTE, scale=scale)
    middle = x + wide * half + wide // 2 - text_width(str(steps[half]), scale) // 2
    if x + ends[0] < middle < right - ends[1] - text_width(str(steps[half]), scale):
        canvas.write_text(str(steps[half]), middle, bottom + 4, MUTE, scale=scale)


def _draw_column(canvas: Canvas, place: PanelPlace, each: LoadMap, number: int) -> None:
    if number >= len(each["steps"]):
        return
    colors = load_colors(_loads_of(each)[:, number])
    for expert, color in enumerate(colors):
        x, y = place.x + number * place.cell_width, place.y + expert * place.cell_height
        canvas.fill_box(x, y, place.cell_width, place.cell_height, int(color))


def _draw_foot(canvas: Canvas, words: str, scale: int) -> None:
    """The scale, and what is drawn."""
    top = len(canvas.pixels) - scale * FOOT + 8 * (scale - 1)
    draw_load_scale(canvas, MARGIN, top, scale)
    canvas.write_text(words, MARGIN, top + 16 + 12 * scale, MUTE, scale=scale)


def _write_step(canvas: Canvas, step: int, last: int, scale: int) -> None:
    height, width = canvas.pixels.shape
    words = f"step {step}"
    most = text_width(f"step {last}")
    x, y = width - MARGIN - most, height - scale * FOOT + 8 * (scale - 1)
    canvas.fill_box(x, y, most, 14, 0)
    canvas.write_text(words, x + most - text_width(words), y)
