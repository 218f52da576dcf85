"""No expert that may be chosen is missing among the candidates, and few others are there."""

import numpy as np
import pytest

from equipoise.selection.candidates import group_count, group_maxima, list_reaching


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("experts", [64, 79, 80, 127, 128, 257, 896])
def test_group_maxima_are_those_of_experts_a_stride_apart(experts, dtype):
    random = np.random.default_rng(experts)
    row, shift = random.normal(size=(2, experts)).astype(dtype)
    most = np.empty(32, dtype)
    group_maxima(row, shift, most)
    assert np.array_equal(most, [(row + shift)[g::32].max() for g in range(32)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("experts", [64, 65, 127, 128, 200, 896])
def test_experts_not_below_the_floor_are_listed_in_order(experts, dtype):
    random = np.random.default_rng(experts)
    row, shift = np.round(random.normal(size=(2, experts)), 1).astype(dtype)
    row[random.random(experts) < 0.1] = np.nan
    found = np.empty(experts, np.int64)
    for floor in (-np.inf, -0.5, 0.0, 1.0, np.inf):
        count = list_reaching(row, shift, dtype(floor), found)
        assert found[:count].tolist() == np.flatnonzero(~(row + shift < dtype(floor))).tolist()


@pytest.mark.parametrize(("experts", "wanted"), [(96, 3), (256, 9), (896, 17)])
def test_few_reach_the_floor(experts, wanted):
    """That is what makes it fast: less than twice the wanted, where nothing ties."""
    random = np.random.default_rng(0)
    groups = group_count(experts, wanted)
    most, found = np.empty(groups, np.float32), np.empty(experts, np.int64)
    counts = []
    for row in random.random((500, experts), np.float32):
        group_maxima(row, np.zeros(experts, np.float32), most)
        floor = np.sort(most)[-wanted]
        counts.append(list_reaching(row, np.zeros(experts, np.float32), floor, found))
    assert wanted <= np.mean(counts) < 2 * wanted


def test_groups_need_experts_enough():
    assert group_count(63, 2) == 0
    assert group_count(64, 2) == 32
    assert group_count(256, 40) == 128
    assert group_count(200, 40) == 0
