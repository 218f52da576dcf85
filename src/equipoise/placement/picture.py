"""A picture of a placement: how full devices are in every layer, before and after.

A row for each layer, and in it a column for each device in order of load: the first is the fullest
device of each batch, mean over batches, which is the cost; the last is the emptiest. A panel each
for linear blocks, EPLB and the placement, on the one scale of all pictures of loads: white is the
mean device, red three times as much. A perfect placement is white throughout.
"""

from __future__ import annotations

import numpy as np

from equipoise.drawing.canvas import GLYPH_HEIGHT, Canvas, text_width
from equipoise.drawing.palette import LINE, MUTE, load_colors
from equipoise.drawing.scale import SCALE_HEIGHT, draw_load_scale
from equipoise.placement.result import LayerPlacement, Placement
from equipoise.storage.arrays import Array

PANEL_WIDTH, PANEL_HEIGHT = 256, 244
"""of the cells together, about: cells are whole pixels"""
MARGIN, HEAD, FOOT = 12, 16, 16
LEAST_WIDTH = 400
"""the scale must fit"""
TALLEST_CELL = 24
TITLES = {"linear": "linear blocks", "eplb": "EPLB", "placed": "placed"}


def draw_placement(placement: Placement) -> Array:
    """(height, width) uint8, places in the palette of equipoise.drawing."""
    layers = placement.layers
    wide = max(1, PANEL_WIDTH // placement.cluster.devices)
    tall = min(TALLEST_CELL, max(2, PANEL_HEIGHT // len(layers)))
    panel = max(wide * placement.cluster.devices, text_width("linear blocks 9.99x", 1))
    width = max(LEAST_WIDTH, MARGIN + (panel + MARGIN) * len(TITLES))
    height = MARGIN + HEAD + tall * len(layers) + FOOT + SCALE_HEIGHT + MARGIN
    canvas = Canvas(width, height)
    for number, way in enumerate(TITLES):
        _draw_panel(canvas, layers, way, MARGIN + number * (panel + MARGIN), wide, tall)
    draw_load_scale(canvas, MARGIN, height - MARGIN - SCALE_HEIGHT)
    return canvas.pixels


def _draw_panel(
    canvas: Canvas, layers: tuple[LayerPlacement, ...], way: str, x: int, wide: int, tall: int
) -> None:
    ranked = [layer.ranked[way] / (layer.even or 1.0) for layer in layers]
    fullest = float(np.mean([row[0] for row in ranked]))
    top = MARGIN + HEAD
    canvas.write_text(f"{TITLES[way]} {fullest:.2f}x", x, MARGIN, scale=1)
    canvas.fill_box(x - 1, top - 1, wide * len(ranked[0]) + 2, tall * len(ranked) + 2, LINE)
    for row, relative in enumerate(ranked):
        for column, color in enumerate(load_colors(relative)):
            canvas.fill_box(x + column * wide, top + row * tall, wide, tall, int(color))
    below = top + tall * len(ranked) + (FOOT - GLYPH_HEIGHT) // 2
    canvas.write_text("fullest device first", x, below, MUTE, scale=1)
