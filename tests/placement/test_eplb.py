"""EPLB, against the example it was published with, and against its own rules."""

import numpy as np
import pytest

from equipoise.placement.cluster import Cluster
from equipoise.placement.device_loads import copies_of_experts
from equipoise.placement.eplb import eplb_slots, pack_evenly, replicate_heaviest
from tests.placement.made import made_loads

# deepseek-ai/EPLB, README.md: two layers, and what the original prints
WEIGHTS = (
    (90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86),
    (20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27),
)
PUBLISHED = (
    (5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1),
    (7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1),
)


@pytest.mark.parametrize(("weights", "published"), [*zip(WEIGHTS, PUBLISHED)])
def test_the_published_example(weights, published):
    cluster = Cluster.checked(12, devices=8, redundant=4, nodes=2, groups=4)
    assert eplb_slots(np.array(weights), cluster).ravel().tolist() == list(published)


def test_copies_go_where_they_are_heaviest():
    experts = replicate_heaviest(np.array([12.0, 5.0, 4.0]), 6, most=6)
    assert experts.tolist() == [0, 1, 2, 0, 0, 1]
    # no more than two of one expert: the third of expert 0 goes elsewhere
    assert replicate_heaviest(np.array([12.0, 5.0, 4.0]), 6, most=2).tolist() == [0, 1, 2, 0, 1, 2]


def test_packs_are_of_one_size_and_filled_by_falling_load():
    packed = pack_evenly(np.array([1.0, 9, 5, 4, 3, 2]), 2)
    assert packed.tolist() == [[1, 4, 0], [2, 3, 5]]


@pytest.mark.parametrize("sizes", [(16, 4, 8, 1, None), (16, 8, 8, 2, 4), (16, 4, 0, 4, 4)])
def test_what_it_makes_is_a_placement(sizes):
    cluster = Cluster.checked(*sizes)
    slots = eplb_slots(made_loads(4, 16)[:, 0].mean(0), cluster)
    assert cluster.allows(slots)
    assert copies_of_experts(slots, 16).sum() == cluster.slots


def test_no_expert_has_more_copies_than_devices_where_they_are_distinct():
    weights = np.array([1000.0, 1, 1, 1])
    free = eplb_slots(weights, Cluster.checked(4, 2, 4))
    assert copies_of_experts(free, 4).max() == 5
    apart = eplb_slots(weights, Cluster.checked(4, 2, 4, distinct=True))
    assert copies_of_experts(apart, 4).tolist() == [2, 2, 2, 2]
