"""What does not fit is refused, with what would."""

import numpy as np
import pytest

from equipoise.placement.cluster import Cluster


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((256, 64, 32), "are 288 slots, which 64 devices cannot share equally: use redundant 0 or"),
        ((6, 4, 0), "are 6 slots, which 4 devices cannot share equally: use redundant 2"),
        ((8, 4, -1), "redundant counts copies: 0 or more, not -1"),
        ((8, 0), "devices must be at least 1, not 0"),
        ((8, 4, 0, 3), "4 devices do not divide over 3 nodes"),
        ((8, 4, 0, 2, 3), "8 experts do not divide into 3 equal groups"),
        ((2, 2, 4, 1, None, True), "4 redundant copies are more than 2 experts can have on 2"),
    ],
)
def test_what_does_not_fit(sizes, message):
    with pytest.raises(ValueError, match=message):
        Cluster.checked(*sizes)


@pytest.mark.parametrize(
    ("nodes", "groups", "kept"), [(1, 4, False), (2, None, False), (2, 4, True), (4, 2, False)]
)
def test_groups_are_kept_where_nodes_divide_them(nodes, groups, kept):
    assert Cluster.checked(8, 4, 0, nodes, groups).hierarchical is kept


@pytest.mark.parametrize(
    ("slots", "allowed"),
    [
        ([[0, 1, 2], [3, 0, 1]], True),
        ([[0, 1, 2], [0, 0, 1]], False),
        ([[0, 1, 1], [3, 0, 2]], True),
    ],
)
def test_placements_that_are_allowed(slots, allowed):
    assert Cluster.checked(4, 2, 2).allows(np.array(slots)) is allowed


def test_doubles_and_split_groups_are_not_allowed():
    assert not Cluster.checked(4, 2, 2, distinct=True).allows(np.array([[0, 1, 1], [3, 0, 2]]))
    kept = Cluster.checked(4, 2, 0, 2, 2)
    assert kept.allows(np.array([[3, 2], [0, 1]]))
    assert not kept.allows(np.array([[0, 2], [1, 3]]))
