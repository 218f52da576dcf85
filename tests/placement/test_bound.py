"""No placement is below the bound: every one of small layers is tried."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.placement.bound import bound_of_batches, least_fullest, least_pieces
from equipoise.placement.cluster import Cluster
from equipoise.placement.device_loads import fullest_device
from equipoise.placement.shared_copies import bound_of_weights, shared_bound
from tests.placement.made import every_placement

SIZES = [(4, 2, 0), (6, 3, 0), (6, 2, 0), (3, 3, 3), (4, 2, 2), (5, 3, 1), (2, 2, 4)]
PLACEMENTS = {sizes: list(every_placement(Cluster.checked(*sizes))) for sizes in SIZES}


@given(st.sampled_from(SIZES), st.data())
@settings(max_examples=60, deadline=None)
def test_no_placement_is_below(sizes, data):
    counts = st.lists(st.integers(0, 40), min_size=sizes[0], max_size=sizes[0])
    loads = np.array(data.draw(st.lists(counts, min_size=1, max_size=3)))
    best = min(fullest_device(loads, slots) for slots in PLACEMENTS[sizes])
    assert least_fullest(loads, Cluster.checked(*sizes)) <= best * (1 + 1e-12)


@pytest.mark.parametrize(
    ("loads", "sizes", "wanted"),
    [
        # even: nothing is in the way
        ((3, 3, 3, 3), (4, 2, 0), 6),
        # the heaviest expert, and the least beside it
        ((9, 2, 1, 1), (4, 2, 0), 10),
        # cut in two it weighs 10
        ((20, 1, 1), (3, 4, 1), 10),
        # two of the three heavy ones meet
        ((5, 5, 5, 1, 1, 1), (6, 2, 0), 11),
        # a copy takes one of them away, and two of the other three still meet
        ((6, 6, 6, 6, 0), (5, 2, 1), 12),
    ],
)
def test_each_bound_bites(loads, sizes, wanted):
    assert bound_of_batches(np.array([loads], float), Cluster.checked(*sizes)).tolist() == [wanted]


def test_pieces_are_cut_where_they_are_heaviest():
    loads = np.array([[12.0, 5, 4], [1, 1, 10]])
    assert least_pieces(loads, 5).tolist() == [5, 10 / 3]


def test_mean_loads_may_bound_better():
    """In each batch alone one more copy of its heavy expert would help; one placement has to serve
    both.
    """
    loads = np.array([[3.0, 1], [1, 3]])
    cluster = Cluster.checked(2, 3, 1)
    assert bound_of_batches(loads, cluster).tolist() == [1.5, 1.5]
    assert least_fullest(loads, cluster) == 2


def test_all_batches_share_their_copies():
    """Three copies of the expert that is asked for would do, but each has two."""
    loads = np.array([[8.0, 0], [0, 8]])
    cluster = Cluster.checked(2, 4, 2)
    assert bound_of_batches(loads, cluster).tolist() == [8 / 3, 8 / 3]
    assert shared_bound(loads, cluster) == pytest.approx(4, rel=1e-3)
    assert least_fullest(loads, cluster) <= 4


@given(st.sampled_from([each for each in SIZES if each[2]]), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_any_weights_bound(sizes, seed):
    """What the descent finds decides how good the bound is, never whether it holds."""
    rng = np.random.default_rng(seed)
    loads = rng.integers(0, 50, (3, sizes[0])).astype(float)
    weights = rng.random((3, sizes[0])) ** 3
    weights /= np.maximum(1, weights.sum(1, keepdims=True))
    bound = bound_of_weights(loads, loads.sum(1) / sizes[1], weights, sizes[0] + sizes[2])
    best = min(fullest_device(loads, slots) for slots in PLACEMENTS[sizes])
    assert bound <= best * (1 + 1e-12)
