"""The local search: its sums against numpy's, and that it stops only where no move helps."""

import numpy as np
import pytest

from equipoise.placement.cluster import Cluster
from equipoise.placement.device_loads import fullest_device
from equipoise.placement.search import search_slots
from equipoise.placement.starts import rival_slots, spread_slots
from tests.placement.made import made_loads

CLUSTERS = [
    Cluster.checked(12, 4),
    Cluster.checked(12, 2),
    Cluster.checked(12, 6, 6),
    Cluster.checked(12, 6, 6, distinct=True),
    Cluster.checked(12, 4, 8, 2, 4),
    Cluster.checked(12, 6, 12, 3, 3, distinct=True),
]


def all_swaps(slots, cluster):
    for first in range(cluster.devices):
        for second in range(first + 1, cluster.devices):
            for i in range(slots.shape[1]):
                for j in range(slots.shape[1]):
                    moved = slots.copy()
                    moved[first, i], moved[second, j] = slots[second, j], slots[first, i]
                    yield moved


def all_copy_moves(slots, cluster):
    for device in range(cluster.devices):
        for place in range(slots.shape[1]):
            for expert in range(cluster.num_experts):
                moved = slots.copy()
                moved[device, place] = expert
                yield moved


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_it_ends_where_no_move_helps(cluster, seed):
    """The twin: every allowed move, each judged anew by numpy. There are 12 experts, and 8 of them
    are candidates for a copy, so copy moves are tried where the heaviest are asked for only.
    """
    loads = made_loads(5, 12, seed)[:, 0]
    start = rival_slots(loads, cluster)
    found = search_slots(loads, start, cluster, descents=0, seed=0)
    cost = fullest_device(loads, found)
    assert cluster.allows(found)
    assert cost <= fullest_device(loads, start)
    pieces = loads.sum(0) / np.bincount(found.ravel())
    heavy = set(np.argsort(-pieces)[:8].tolist())
    moves = [*all_swaps(found, cluster)]
    moves += [
        each
        for each in all_copy_moves(found, cluster)
        if set(each[each != found].tolist()) <= heavy
    ]
    better = [
        each
        for each in moves
        if cluster.allows(each) and fullest_device(loads, each) < cost * (1 - 1e-6)
    ]
    assert better == []


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_kicks_never_lose(cluster):
    loads = made_loads(5, 12, 7)[:, 0]
    start = rival_slots(loads, cluster)
    plain = search_slots(loads, start, cluster, descents=0, seed=0)
    kicked = search_slots(loads, start, cluster, descents=20, seed=0)
    assert cluster.allows(kicked)
    assert fullest_device(loads, kicked) <= fullest_device(loads, plain) * (1 + 1e-12)


def test_the_same_seed_is_the_same_placement():
    loads, cluster = made_loads(5, 24)[:, 0], Cluster.checked(24, 6, 6)
    start = rival_slots(loads, cluster)
    found = [search_slots(loads, start, cluster, descents=5, seed=3) for _ in range(2)]
    assert (found[0] == found[1]).all()


def test_where_it_begins_is_left_alone():
    loads, cluster = made_loads(5, 24)[:, 0], Cluster.checked(24, 6, 6)
    start = rival_slots(loads, cluster)
    kept = start.copy()
    search_slots(loads, start, cluster, descents=2, seed=0)
    assert (start == kept).all()


def test_experts_that_are_full_together_are_parted():
    loads = np.array([[9, 1, 9, 1], [1, 9, 1, 9]])
    cluster = Cluster.checked(4, 2)
    assert fullest_device(loads, rival_slots(loads, cluster)) == 18
    assert fullest_device(loads, spread_slots(loads, np.arange(4).reshape(2, 2), cluster)) == 10


@pytest.mark.parametrize("seed", range(20))
def test_doubles_are_parted_whatever_eplb_does(seed):
    rng = np.random.default_rng(seed)
    cluster = Cluster.checked(4, 4, 12, distinct=True)
    loads = np.exp(3 * rng.standard_normal((3, 4)))
    for slots in (
        rival_slots(loads, cluster),
        spread_slots(loads, rival_slots(loads, cluster), cluster),
    ):
        assert cluster.allows(slots)
