"""scale: what the colours of loads mean, as it stands at the foot of a picture."""

from __future__ import annotations

import numpy as np

from equipoise.drawing.canvas import Canvas
from equipoise.drawing.palette import MUTE, OVER, SCALE_END, load_colors

BAR_WIDTH = 120
SCALE_HEIGHT = 24
"""of the bar and the numbers below it"""


def draw_load_scale(canvas: Canvas, x: int, y: int, scale: int = 1) -> None:
    """The scale with its ends, and the colour of what is above it."""
    bar = BAR_WIDTH // 2 * (1 + scale)
    levels = (np.arange(bar) + 0.5) / bar * SCALE_END
    for place, color in enumerate(load_colors(levels)):
        canvas.fill_box(x + place, y, 1, 10, int(color))
    for level in (0, 1, int(SCALE_END)):
        at = x + int(bar * level / SCALE_END) - (6 * scale if level else 0)
        canvas.write_text(f"{level}x", at, y + 14, MUTE, scale=scale)
    canvas.fill_box(x + bar + 24, y, 10, 10, OVER)
    above = f"above {SCALE_END:g}x the target"
    canvas.write_text(above, x + bar + 42, y + 2 - scale, MUTE, scale=scale)
