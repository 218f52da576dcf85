"""force=: even and skewed loads, exact for every number of tokens."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.attach.replay import EvenLoads, SkewedLoads
from equipoise.attach.replay.given_experts import RouterShape
from tests.attach.tools import batch, forward, tiny

pytestmark = pytest.mark.filterwarnings("ignore:forwards whose experts are replayed")
FORWARDS = st.lists(st.integers(0, 40), min_size=1, max_size=6)


def loads_of(rows, num_experts, top_k):
    assert rows.shape[1] == top_k
    assert all(len(set(row)) == top_k for row in rows.tolist())
    return np.bincount(rows.ravel(), minlength=num_experts)


@settings(max_examples=80, deadline=None)
@given(devices=st.integers(1, 6), each=st.integers(1, 5), forwards=FORWARDS, data=st.data())
def test_even_for_every_number_of_tokens(devices, each, forwards, data):
    """In every forward, and in all together: experts and devices differ by 1 choice at most, so no
    device idles that could work.
    """
    num_experts = devices * each
    top_k = data.draw(st.integers(1, num_experts))
    rows = EvenLoads(devices).rows_of(RouterShape("layer", num_experts, top_k))
    total = np.zeros(num_experts, int)
    for tokens in forwards:
        loads = loads_of(rows.take_next("layer", tokens), num_experts, top_k)
        total += loads
        for counted in (loads, total):
            by_device = counted.reshape(devices, each).sum(1)
            assert np.ptp(counted) <= 1
            assert np.ptp(by_device) <= 1
        assert (loads.reshape(devices, each).sum(1) > 0).sum() == min(devices, tokens * top_k)


def possible_weights(weights, top_k):
    return sum(weights) > 0 and top_k * max(weights) <= sum(weights)


@settings(max_examples=80, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.5, 7.0]), min_size=1, max_size=12),
    forwards=FORWARDS,
    data=st.data(),
)
def test_skewed_to_the_last_token(weights, forwards, data):
    exact = [Fraction(weight) for weight in weights]
    most = [k for k in range(1, len(weights) + 1) if possible_weights(exact, k)]
    top_k = data.draw(st.sampled_from(most or [1]))
    shape = RouterShape("layer", len(weights), top_k)
    if not possible_weights(exact, top_k):
        with pytest.raises(ValueError, match="all 0"):
            SkewedLoads(tuple(weights)).rows_of(shape)
        return
    rows = SkewedLoads(tuple(weights)).rows_of(shape)
    for tokens in forwards:
        loads = loads_of(rows.take_next("layer", tokens), len(weights), top_k)
        wanted = [tokens * top_k * weight / sum(exact) for weight in exact]
        assert all(abs(int(load) - share) < 1 for load, share in zip(loads, wanted))
        assert all(load == share for load, share in zip(loads, wanted) if share.denominator == 1)


def test_short_forwards_add_up_to_the_weights():
    rows = SkewedLoads((5.0, 3.0, 1.5, 0.5)).rows_of(RouterShape("layer", 4, 1))
    taken = [int(rows.take_next("layer", 1)[0, 0]) for _ in range(1000)]
    loads = np.bincount(taken, minlength=4)
    assert np.abs(loads - np.array([500, 300, 150, 50])).max() < 10


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_moe"])
def test_in_a_model(name):
    model = tiny(name)
    balancing = equipoise.balance(model, "deepseek")
    for force, wanted in (("balanced", [9] * 8), ([2, 2, 1, 1, 1, 1, 0, 0], [18] * 2 + [9] * 4)):
        with balancing.replay(force=force, devices=4), balancing.record_experts() as taken:
            loss = forward(model, batch())
        loss.backward()
        for layer in taken.layers:
            loads = np.bincount(taken[layer].ravel(), minlength=8)
            assert loads.tolist() == [*wanted, 0, 0][:8]
    balancing.step()
    assert not any(router.balancer.steps == 0 for router in balancing.routers)


WRONG = {
    "a name": ("even", "balanced.*'even'"),
    "too few": ([1, 1], "mlp: force has 2 weights"),
    "negative": ([1] * 7 + [-1], "not negative"),
    "not finite": ([1] * 7 + [float("nan")], "finite"),
    "zeros": ([0] * 8, "all 0"),
    "too much": ([6, 4, 0, 0, 0, 0, 0, 0], r"60\.0% .* expert 0, .*top-2 at most 50\.0%"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_cannot_be_forced_is_refused(mistake):
    force, message = WRONG[mistake]
    balancing = equipoise.balance(tiny("qwen3_moe"), "deepseek")
    with pytest.raises(ValueError, match=message), balancing.replay(force=force):
        raise AssertionError("it was taken")


def test_a_force_that_is_no_weights_is_named():
    balancing = equipoise.balance(tiny("qwen3_moe"), "deepseek")
    with pytest.raises(TypeError, match='force is "balanced", or a weight for each expert, not 3'):
        balancing.replay(force=3)


def test_experts_and_force_are_one_question():
    balancing = equipoise.balance(tiny("qwen3_moe"), "deepseek")
    for arguments in ({}, {"experts": torch.zeros(2, 2, 2).long(), "force": "balanced"}):
        with pytest.raises(ValueError, match="give one of them"):
            balancing.replay(**arguments)
