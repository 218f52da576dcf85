"""A step's loads as a picture: every cell has its load's colour, and all is in the picture."""

import numpy as np
import pytest

from equipoise.drawing.heat_map import draw_heat_map, empty_heat_map, short_names
from equipoise.drawing.palette import OVER, load_colors, load_palette


def loads_of(layers, experts, seed=0):
    rng = np.random.default_rng(seed)
    return {f"model.layers.{n}.mlp": rng.gamma(2, 0.5, experts) for n in range(layers)}


def middle(place, row, expert):
    y = place.y + row * place.cell_height + place.cell_height // 2
    return y, place.x + expert * place.cell_width + place.cell_width // 2


@pytest.mark.parametrize(("layers", "experts"), [(1, 1), (2, 8), (26, 64), (60, 384), (100, 3)])
def test_every_cell_has_its_loads_color(layers, experts):
    loads = loads_of(layers, experts)
    pixels = draw_heat_map(loads, "step 1")
    _, place = empty_heat_map(loads)
    assert pixels.dtype == np.uint8
    assert pixels.shape[1] <= 900
    assert pixels.shape[0] <= 520
    palette = load_palette()
    for row, relative in enumerate(loads.values()):
        seen = [pixels[middle(place, row, expert)].tolist() for expert in range(experts)]
        assert seen == palette[load_colors(relative)].tolist()


def test_the_scale_does_not_follow_the_loads():
    """Of a balanced and an unbalanced step: the same load has the same colour."""
    loads = [{"0": np.array([1.0, 1.5])}, {"0": np.array([90.0, 1.5])}]
    pictures = [draw_heat_map(each, "") for each in loads]
    _, place = empty_heat_map(loads[0])
    first, second = (picture[middle(place, 0, 1)].tolist() for picture in pictures)
    assert first == second
    assert pictures[1][middle(place, 0, 0)].tolist() == load_palette()[OVER].tolist()


def test_layers_may_have_other_numbers_of_experts():
    loads = {"a": np.ones(4), "b": np.ones(2)}
    pixels, (_, place) = draw_heat_map(loads, ""), empty_heat_map(loads)
    even = load_palette()[load_colors(np.ones(1))[0]].tolist()
    assert pixels[middle(place, 0, 3)].tolist() == even
    assert pixels[middle(place, 1, 1)].tolist() == even
    assert pixels[middle(place, 1, 2)].tolist() != even


def test_no_layers_are_refused():
    with pytest.raises(ValueError, match="no loads to draw"):
        draw_heat_map({}, "")


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["model.layers.3.mlp", "model.layers.10.mlp"], ["3", "10"]),
        (["blocks.1"], ["blocks.1"]),
        (["a.b", "a"], ["a.b", "a"]),
        (["x.1.gate", "y.1.gate"], ["x", "y"]),
        (["same.same", "same.same"], ["same", "same"]),
    ],
)
def test_names_are_short(names, short):
    assert short_names(names) == short
