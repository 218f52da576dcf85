"""Which tokens the exact finish must look at."""

import numpy as np
import pytest

from equipoise.optimum.exact import _region_covers
from equipoise.optimum.newton import Region
from tests.optimum.problems import softmax_scores


@pytest.fixture
def whole():
    scores = softmax_scores(200, 6)
    return Region.whole(scores, 2, float(scores.max()))


def test_a_region_covers_what_is_nearer_than_its_radius(whole):
    shift = np.zeros(6, np.float32)
    region, look = whole.narrowed(whole.look(shift), radius=0.05)
    assert len(region) < len(whole)
    assert _region_covers(region, look, reach=0.04)
    assert not _region_covers(region, look, reach=0.05)
    assert not _region_covers(region, look, reach=0.06)
    assert _region_covers(whole, whole.look(shift), reach=1e9)


def test_a_region_covers_less_where_the_shift_has_moved(whole):
    region, _ = whole.narrowed(whole.look(np.zeros(6, np.float32)), radius=0.05)
    moved = np.array([0.02, 0, 0, 0, 0, 0], np.float32)
    assert _region_covers(region, region.look(moved), reach=0.02)
    assert not _region_covers(region, region.look(moved), reach=0.04)
