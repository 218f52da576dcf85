"""The fullest device by formula, against drawn loads and integrals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from equipoise.costs.fullest import (
    expected_maximum,
    fullest_by_chance,
    fullest_device,
    greatest_fullest,
    imbalance_of_fullest,
)


@pytest.mark.parametrize(
    ("numbers", "mean"), [(1, 0), (2, 1 / np.sqrt(np.pi)), (3, 1.5 / np.sqrt(np.pi))]
)
def test_the_largest_of_some_normals(numbers, mean):
    assert expected_maximum(numbers) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("numbers", [8, 64, 2048, 1_000_000])
def test_the_largest_of_many_normals(numbers):
    def density(x):
        return x * numbers * norm.pdf(x) * norm.cdf(x) ** (numbers - 1)

    assert expected_maximum(numbers) == pytest.approx(quad(density, -10, 10, limit=200)[0])


def test_it_is_what_drawn_loads_give():
    m, experts, devices = 0.1, 256, 64
    loads = np.random.default_rng(0).normal(1, m * np.sqrt(np.pi / 2), (20_000, experts))
    drawn = loads.reshape(-1, devices, experts // devices).mean(2).max(1).mean()
    assert fullest_device(m, experts, devices, 8) == pytest.approx(drawn, rel=0.002)


@given(
    st.floats(0, 50),
    st.floats(0, 50),
    st.sampled_from([(8, 8, 2), (64, 8, 6), (256, 64, 8), (384, 16, 8), (896, 1, 16)]),
)
def test_it_grows_with_imbalance_up_to_its_limit(low, high, sizes):
    experts, devices, top_k = sizes
    low, high = sorted((low, high))
    first, second = (fullest_device(each, experts, devices, top_k) for each in (low, high))
    assert 1 <= first <= second <= greatest_fullest(experts, devices, top_k)
    assert fullest_device(0.0, experts, devices, top_k) == 1


def test_the_limit_is_reached_by_a_router_with_a_favourite():
    """All tokens take experts 0 to 3 of 16, which are those of the first of four devices."""
    loads = np.repeat([100, 0], [4, 12]).reshape(4, 4).sum(1)
    assert loads.max() / loads.mean() == greatest_fullest(16, 4, top_k=4) == 4
    # eight experts a token: at least half of them are elsewhere
    assert greatest_fullest(16, 4, top_k=8) == 2


@given(st.floats(0.0, 1.0), st.sampled_from([(64, 8), (256, 64)]))
def test_the_inverse(imbalance, sizes):
    fullest = fullest_device(imbalance, *sizes)
    assert imbalance_of_fullest(fullest, *sizes) == pytest.approx(imbalance, abs=1e-9)


def test_one_device_waits_for_nobody():
    assert fullest_device(5.0, 64, 1) == 1
    with pytest.raises(ValueError, match="no imbalance to tell"):
        imbalance_of_fullest(1.0, 64, 1)


@pytest.mark.parametrize("imbalance", [-0.1, float("inf"), float("nan")])
def test_impossible_imbalances_are_refused(imbalance):
    with pytest.raises(ValueError, match="finite and not negative"):
        fullest_device(imbalance, 64, 8)


@pytest.mark.parametrize("top_k", [1, 6])
def test_chance_is_what_even_choices_give(top_k):
    """Every token takes K of 16 experts, all alike: the fullest of four devices of four experts."""
    rng = np.random.default_rng(top_k)
    order = rng.random((2000, 200, 16)).argsort(-1)[..., :top_k]
    loads = np.stack([(order // 4 == device).sum((1, 2)) for device in range(4)], 1)
    drawn = (loads.max(1) / loads.mean(1)).mean()
    expected = fullest_by_chance(200, 16, 4, top_k)
    assert expected - 1 == pytest.approx(drawn - 1, rel=0.05)


def test_chance_where_there_is_none():
    assert fullest_by_chance(100, 16, 1, 4) == 1
    assert fullest_by_chance(100, 16, 4, 16) == 1
