"""The integer program, against every placement there is."""

import numpy as np
import pytest

from equipoise.placement.cluster import Cluster
from equipoise.placement.device_loads import fullest_device
from equipoise.placement.exact import is_small, solve_exactly
from equipoise.placement.starts import rival_slots
from tests.placement.made import every_placement, made_loads


@pytest.mark.parametrize(
    ("experts", "devices", "redundant", "distinct"),
    [(4, 2, 0, False), (6, 3, 0, False), (6, 2, 0, False), (4, 2, 2, False), (3, 3, 3, True)],
)
@pytest.mark.parametrize("seed", range(2))
def test_it_finds_the_best_of_all(experts, devices, redundant, distinct, seed):
    cluster = Cluster.checked(experts, devices, redundant, distinct=distinct)
    loads = made_loads(4, experts, seed)[:, 0]
    best = min(fullest_device(loads, slots) for slots in every_placement(cluster))
    found = solve_exactly(loads, rival_slots(loads, cluster), cluster, seconds=60)
    assert cluster.allows(found.slots)
    assert fullest_device(loads, found.slots) == pytest.approx(best, rel=1e-9)
    assert found.bound == pytest.approx(best, rel=1e-5)


def test_without_time_the_known_placement_stays():
    cluster = Cluster.checked(12, 4, 4)
    loads = made_loads(8, 12)[:, 0]
    known = rival_slots(loads, cluster)
    found = solve_exactly(loads, known, cluster, seconds=1e-3)
    assert fullest_device(loads, found.slots) <= fullest_device(loads, known)
    assert found.bound <= fullest_device(loads, found.slots)


def test_no_tokens_are_no_trouble():
    cluster = Cluster.checked(4, 2)
    found = solve_exactly(np.zeros((2, 4)), np.arange(4).reshape(2, 2), cluster, seconds=10)
    assert cluster.allows(found.slots)


@pytest.mark.parametrize(
    ("batches", "sizes", "small"),
    [
        (8, (8, 4, 0), True),
        (1000, (8, 4, 0), False),
        (8, (256, 64, 0), False),
        (8, (8, 4, 0, 2, 2), False),
    ],
)
def test_what_is_small(batches, sizes, small):
    assert is_small(batches, Cluster.checked(*sizes)) is small
