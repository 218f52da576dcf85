"""The picture shows how full devices are, the fullest first."""

import numpy as np
import pytest

from equipoise.drawing.palette import load_colors, load_palette
from equipoise.placement import place
from equipoise.placement.picture import HEAD, MARGIN, draw_placement
from tests.placement.made import made_loads


def test_colours_are_loads_of_devices():
    found = place(np.array([[9, 9, 1, 1]]), devices=2)
    pixels = draw_placement(found)
    y = MARGIN + HEAD + 2
    # linear blocks: 18 and 2 of a mean of 10
    full, empty = load_colors(np.array([1.8, 0.2]))
    assert (pixels[y, MARGIN + 2], pixels[y, MARGIN + 130]) == (full, empty)
    # placed: 10 and 10
    even = load_colors(np.array([1.0]))[0]
    x = MARGIN + 2 * (256 + MARGIN) + 2
    assert (pixels[y, x], pixels[y, x + 128]) == (even, even)


@pytest.mark.parametrize(("layers", "experts", "devices"), [(1, 2, 1), (61, 64, 64), (200, 4, 2)])
def test_any_size_fits_a_screen(layers, experts, devices):
    pixels = draw_placement(
        place(made_loads(2, experts, layers=layers), devices=devices, exact_seconds=0)
    )
    assert pixels.shape[0] < 700
    assert pixels.shape[1] < 1000
    assert load_palette()[pixels].shape[2] == 3
