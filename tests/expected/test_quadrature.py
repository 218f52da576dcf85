"""Integrals over the threshold: densities integrate to 1, and the error is known."""

import numpy as np
import pytest

from equipoise.expected.counting import BLOCK
from equipoise.expected.laws import Beta, Histogram, Uniform
from equipoise.expected.quadrature import ShiftedLaw, adapted_grid, fine_grid

SHIFT = np.array([0.3, -0.2, 0.0, 0.1])
LAWS = {
    "uniform": Uniform(4),
    "beta": Beta(np.linspace(2, 4, 4), 3),
    "histogram": Histogram(np.arange(1, 13).reshape(4, 3), [0.1, 0.4, 0.5, 0.9]),
}


@pytest.mark.parametrize("name", LAWS)
def test_everything_is_integrated_when_all_are_chosen(name):
    """With K = E no threshold cuts anything off: each density's integral is 1."""
    law = ShiftedLaw(LAWS[name], SHIFT, 4)
    grid, error = adapted_grid(law, 1e-10)
    assert error <= 1e-9
    for each in (grid, fine_grid(law)):
        np.testing.assert_allclose(each.density @ each.weights, 1, atol=1e-7)
        np.testing.assert_allclose(each.chosen, 1)


def test_grids_are_whole_blocks():
    """The kernels of counting.py read whole blocks of points."""
    grid, _ = adapted_grid(ShiftedLaw(LAWS["beta"], SHIFT, 2), 1e-12)
    assert grid.v.size % BLOCK == 0
    assert grid.density.shape == (4, grid.v.size)
    assert grid.density.flags.c_contiguous


def test_a_smaller_tolerance_takes_more_points_for_less_error():
    rough, fine = (adapted_grid(ShiftedLaw(LAWS["beta"], SHIFT, 2), size) for size in (1e-4, 1e-13))
    assert rough[0].v.size < fine[0].v.size
    assert rough[1] > fine[1]


def test_weights_agree_on_both_grids():
    law = ShiftedLaw(LAWS["beta"], SHIFT, 2)
    grid, _ = adapted_grid(law, 1e-12)
    np.testing.assert_allclose(
        grid.boundary_weight(2), fine_grid(law).boundary_weight(2), atol=1e-10
    )
