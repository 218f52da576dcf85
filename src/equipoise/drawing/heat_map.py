"""heat_map: the loads of one step, a row for every layer and a column for every expert.

All layers have one scale, that of the pages' heat maps, so pictures of different steps and runs can
be laid side by side: blue is idle, white on target, red three times the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from equipoise.drawing.canvas import GLYPH_HEIGHT, Canvas, text_width
from equipoise.drawing.palette import LINE, MUTE, load_colors, load_palette
from equipoise.drawing.scale import SCALE_HEIGHT, draw_load_scale

MAP_WIDTH, MAP_HEIGHT = 640, 320
"""of the cells together, about: cells are whole pixels"""
LEAST_WIDTH = 400
"""of the picture: the line below it must fit"""
TALLEST_CELL = 24
MARGIN, TITLE, AXIS = 12, 24, 16


class HeatMapPlace(NamedTuple):
    """Where the cells are, in pixels."""

    x: int
    y: int
    cell_width: int
    cell_height: int


def draw_heat_map(loads: Mapping[str, np.ndarray], title: str) -> np.ndarray:
    """(height, width, 3) uint8: loads over their targets (E,), by layer, in order."""
    canvas, place = empty_heat_map(loads)
    canvas.write_text(title, MARGIN, MARGIN, scale=1)
    for row, relative in enumerate(loads.values()):
        _draw_row(canvas, place, row, relative)
    _write_layers(canvas, place, short_names(list(loads)))
    _write_experts(canvas, place, len(loads), _most_experts(loads))
    draw_load_scale(canvas, MARGIN, len(canvas.pixels) - MARGIN - SCALE_HEIGHT)
    return load_palette()[canvas.pixels]


def empty_heat_map(loads: Mapping[str, np.ndarray]) -> tuple[Canvas, HeatMapPlace]:
    """A canvas of the right size, and where the cells are."""
    if not loads:
        raise ValueError("there are no loads to draw: the model has no balanced layer")
    experts, layers = _most_experts(loads), len(loads)
    wide = max(2, MAP_WIDTH // experts)
    tall = min(TALLEST_CELL, max(4, MAP_HEIGHT // layers))
    names = max(text_width(name, 1) for name in short_names(list(loads)))
    place = HeatMapPlace(MARGIN + names + 6, MARGIN + TITLE, wide, tall)
    width = place.x + wide * experts + MARGIN
    height = place.y + tall * layers + AXIS + MARGIN + SCALE_HEIGHT
    canvas = Canvas(max(width, LEAST_WIDTH), height + MARGIN)
    canvas.fill_box(place.x - 1, place.y - 1, wide * experts + 2, tall * layers + 2, LINE)
    return canvas, place


def _draw_row(canvas: Canvas, place: HeatMapPlace, row: int, relative: np.ndarray) -> None:
    y = place.y + row * place.cell_height
    for expert, color in enumerate(load_colors(relative)):
        x = place.x + expert * place.cell_width
        canvas.fill_box(x, y, place.cell_width, place.cell_height, int(color))


def _write_layers(canvas: Canvas, place: HeatMapPlace, names: list[str]) -> None:
    """As many as fit below each other."""
    every = -(-(GLYPH_HEIGHT + 2) // place.cell_height)
    for row in range(0, len(names), every):
        y = place.y + row * place.cell_height + (place.cell_height - GLYPH_HEIGHT) // 2
        x = place.x - 6 - text_width(names[row], 1)
        canvas.write_text(names[row], x, y, MUTE, scale=1)


def _write_experts(canvas: Canvas, place: HeatMapPlace, layers: int, experts: int) -> None:
    """The number of the first and of the last expert, below their columns."""
    y = place.y + layers * place.cell_height + 5
    canvas.write_text("expert 0", place.x, y, MUTE, scale=1)
    last = str(experts - 1)
    x = place.x + experts * place.cell_width - text_width(last, 1)
    if x > place.x + text_width("expert 0 ", 1):
        canvas.write_text(last, x, y, MUTE, scale=1)


def _most_experts(loads: Mapping[str, np.ndarray]) -> int:
    return max(len(each) for each in loads.values())


def short_names(names: list[str]) -> list[str]:
    """Without the words that all of them begin or end with: "model.layers.3.mlp" is "3"."""
    words = [name.split(".") for name in names]
    if len(names) < 2:
        return names
    while all(len(each) > 1 for each in words) and len({each[0] for each in words}) == 1:
        words = [each[1:] for each in words]
    while all(len(each) > 1 for each in words) and len({each[-1] for each in words}) == 1:
        words = [each[:-1] for each in words]
    return [".".join(each) for each in words]
