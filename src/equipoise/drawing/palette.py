"""palette: the colours of load pictures, those of the pages' heat maps: blue below the target, red
above it, and a colour of its own for what is above the end of the scale.
"""

from __future__ import annotations

import numpy as np

from equipoise.results.scheme_style import COLORS

SCALE_END = 3.0
"""times the target"""
BLANK, INK, MUTE, LINE, OVER = range(5)
_NAMED = ((255, 255, 255), (29, 35, 48), (93, 102, 120), (217, 221, 229), (74, 13, 103))
_COLD, _EVEN, _HOT = (33, 102, 172), (247, 248, 250), (214, 69, 42)
_SHADES = 200
_FIRST_SHADE = len(_NAMED)
_FIRST_SCHEME = _FIRST_SHADE + _SHADES


def load_palette() -> np.ndarray:
    """(256, 3) uint8."""
    palette = np.zeros((256, 3), np.uint8)
    palette[:_FIRST_SHADE] = _NAMED
    levels = (np.arange(_SHADES) + 0.5) / _SHADES * SCALE_END
    points = ([0.0, 1.0, SCALE_END], np.array([_COLD, _EVEN, _HOT], float))
    shades = [np.interp(levels, points[0], points[1][:, channel]) for channel in range(3)]
    palette[_FIRST_SHADE:_FIRST_SCHEME] = np.rint(np.stack(shades, 1))
    for place, color in enumerate(COLORS.values()):
        palette[_FIRST_SCHEME + place] = list(bytes.fromhex(color[1:]))
    return palette


def load_colors(loads: np.ndarray) -> np.ndarray:
    """Loads over target as places in the palette."""
    shade = np.minimum(loads / SCALE_END * _SHADES, _SHADES - 1).astype(int) + _FIRST_SHADE
    return np.where(loads > SCALE_END, OVER, shade).astype(np.uint8)


def scheme_place(color: str) -> int:
    """Where a scheme's colour is in the palette."""
    return _FIRST_SCHEME + list(COLORS.values()).index(color)
