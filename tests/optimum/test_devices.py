"""Capacities of devices: exact, against HiGHS, and one number per device proves it."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.cli import main
from equipoise.optimum.bounds import device_places, sum_by_device
from equipoise.optimum.problem import Problem
from equipoise.optimum.reference import solve_by_lp
from tests.optimum.problems import softmax_scores
from tests.optimum.test_solve import HARD, E, K, T

SCATTERED = np.arange(E) % 4


def check(scores, solution, lower, upper):
    solution.verify(scores)
    assert abs(solution.gap) <= solution.rounding_bound
    assert (solution.device_loads >= lower).all()
    assert (solution.device_loads <= upper).all()
    assert solution.device_loads.sum() == solution.experts.size


@st.composite
def problems(draw):
    """Scores on a grid or not, K, devices that hold equally many or not, loads they can take."""
    experts = draw(st.integers(1, 8))
    top_k = draw(st.integers(1, experts))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = rng.normal(size=(draw(st.integers(1, 24)), experts)) + rng.normal(size=experts)
    if draw(st.booleans()):
        scores = np.round(2 * scores) / 2
    devices = np.array(draw(st.lists(st.integers(0, 3), min_size=experts, max_size=experts)))
    anyhow = np.stack([rng.permutation(experts)[:top_k] for _ in scores])
    place = device_places(devices, experts)
    target = sum_by_device(np.bincount(anyhow.ravel(), minlength=experts), place)
    return scores, top_k, devices, target


@settings(deadline=None, max_examples=60)
@given(problems())
def test_given_capacities_against_highs(problem):
    scores, top_k, devices, target = problem
    solution = equipoise.solve(scores, top_k, devices=devices, target=target)
    check(scores, solution, target, target)
    judged = solve_by_lp(scores, top_k, devices=devices, target=target)
    assert solution.value == pytest.approx(judged.value, rel=1e-9, abs=1e-9)
    assert solution.value == pytest.approx(judged.dual_value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_floor_or_ceiling_against_highs(seed):
    """T K is no multiple of D: each device takes one of two loads, whichever is best."""
    rng = np.random.default_rng(seed)
    tokens, devices = int(rng.integers(1, 20)), int(rng.choice([2, 3, 4, 6]))
    scores = rng.normal(size=(tokens, 12)) + rng.normal(size=12)
    solution = equipoise.solve(scores, 5, devices=devices)
    check(scores, solution, tokens * 5 // devices, -(-tokens * 5 // devices))
    assert solution.rounded_target == bool(tokens * 5 % devices)
    judged = solve_by_lp(scores, 5, devices=devices)
    assert solution.value == pytest.approx(judged.value, rel=1e-9)


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("devices", [2, SCATTERED], ids=["2", "scattered"])
def test_hard_scores(name, devices):
    even = T * K // len(np.unique(device_places(devices, E)))
    check(HARD[name], equipoise.solve(HARD[name], K, devices=devices), even, even)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_tokens_than_samples(dtype):
    """Newton on samples first, whose capacities are no whole numbers; then all."""
    scores = softmax_scores(70_001, 24, dtype=dtype)
    solution = equipoise.solve(scores, 5, devices=6)
    check(scores, solution, 70_001 * 5 // 6, -(-70_001 * 5 // 6))


def test_a_device_of_one_expert_is_that_expert():
    scores = softmax_scores(900, E)
    here, there = (equipoise.solve(scores, K, devices=each) for each in (None, E))
    assert np.array_equal(here.experts, there.experts)
    assert np.array_equal(here.shift, there.shift)
    assert here.place is None
    assert np.array_equal(there.place, np.arange(E))


def test_a_single_device_takes_every_tokens_best():
    scores = softmax_scores(900, E)
    solution = equipoise.solve(scores, K, devices=1)
    assert not solution.shift.any()
    best = np.sort(scores, axis=1)[:, -K:].sum(dtype=np.float64)
    assert solution.value == pytest.approx(best)


def test_a_start_is_taken_whatever_it_is():
    """Also one of experts, which is no dual of devices."""
    scores = softmax_scores(2000, E)
    value = equipoise.solve(scores, K, devices=4).value
    for start in (np.random.default_rng(0).normal(size=E), np.linspace(0, 1e6, E)):
        assert equipoise.solve(scores, K, devices=4, shift=start).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("doctor", "message"),
    [
        (lambda s: {"shift": s.shift + 1e-9 * (np.arange(E) == 1)}, "one number for each"),
        (lambda s: {"upper": s.upper - 1}, "device 0 has 2250 tokens, not 2250 to 2249"),
        (lambda s: {"shift": np.zeros(E)}, "not a top-K"),
        (lambda s: {"place": np.arange(E) % 4}, "device 0 has|one number for each"),
    ],
)
def test_a_doctored_proof_is_refused(doctor, message):
    scores = softmax_scores(T, E)
    solution = equipoise.solve(scores, K, devices=4)
    solution.verify(scores)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(solution, **doctor(solution)).verify(scores)


def test_a_shift_is_judged_by_devices():
    scores = softmax_scores(T, E)
    optimum = equipoise.solve(scores, K, devices=4)
    found = equipoise.evaluate(scores, K, optimum.shift, devices=4)
    assert found.imbalance < 1e-3
    assert found.dual_gap == pytest.approx(0, abs=1e-9)
    none = equipoise.evaluate(scores, K, np.zeros(E), devices=4, optimum=optimum)
    held = sum_by_device(none.loads, device_places(4, E))
    assert none.imbalance == pytest.approx(np.abs(held / held.mean() - 1).mean())
    # a shift of experts is no dual of devices: nothing is known of it
    uneven = equipoise.evaluate(scores, K, np.linspace(0, 0.1, E), devices=4, optimum=optimum)
    assert uneven.dual_gap == np.inf


def test_the_dual_is_never_below_the_optimum():
    scores = softmax_scores(200, E)
    optimum = equipoise.solve(scores, K, devices=SCATTERED)
    problem = Problem.of(scores, K, devices=SCATTERED)
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert problem.dual(rng.normal(size=4)[SCATTERED]) >= optimum.value - 1e-9


def test_finer_balance_costs_more():
    """Blocks of blocks: whatever is even for 16 is even for 8."""
    scores = softmax_scores(T, E)
    costs = equipoise.balance_costs(scores, K, [1, 2, 4, 8, 16])
    assert costs[0].given_up == 0
    assert [each.given_up for each in costs] == sorted(each.given_up for each in costs)
    assert costs[2].given_up < costs[4].given_up / 3
    free = np.sort(scores.astype(np.float64), axis=1)[:, -K:].sum()
    even = equipoise.solve(scores, K).value
    assert costs[4].value == pytest.approx(even)
    assert costs[4].given_up == pytest.approx(1 - even / free, rel=1e-6)
    assert "devices=16" in repr(costs[4])


def test_per_device_comes_near_the_optimum():
    """The balancer on one batch, again and again: its dual is that of device capacities."""
    scores = softmax_scores(4096, 64, dtype=np.float32)
    balancer = equipoise.balancer("per_device", 64, top_k=6, devices=8)
    for _ in range(20):
        routing = balancer.route(torch.from_numpy(scores))
        balancer.update(balancer.tally(torch.from_numpy(scores), routing))
    optimum = equipoise.solve(scores, 6, devices=8)
    # the balancer's shift is float32, and the same within a device
    found = equipoise.evaluate(scores, 6, balancer.shift.numpy(), devices=8, optimum=optimum)
    start = equipoise.evaluate(scores, 6, np.zeros(64), devices=8, optimum=optimum)
    assert 0 <= found.dual_gap < 1e-4 * start.dual_gap
    assert found.imbalance < 2e-3 < 0.1 < start.imbalance


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 5}, "16 experts do not divide over 5 devices"),
        ({"devices": 0}, "do not divide over 0 devices"),
        ({"devices": 2.5}, "do not divide over 2.5 devices"),
        ({"devices": [0, 1]}, r"devices have shape \(2,\), but there are 16 experts"),
        ({"devices": 4, "target": [1, 2]}, "one load for each of 4 devices"),
        (
            {"devices": [0] * 15 + [1], "target": [8999, 3001][::-1]},
            "the target of device 1 is 8999: not between 0 and the 3000 tokens",
        ),
        ({"devices": [0] * 15 + [1]}, "the target of device 1 is 4500.0: not between 0"),
        (
            {"devices": [0, 0] + [1] * 14, "target": [6001, 2999]},
            "the 3000 tokens there are, 2 times for its 2 experts",
        ),
        ({"devices": 2, "target": [4500, 4501]}, "targets sum to 9001"),
    ],
)
def test_wrong_devices_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        equipoise.solve(softmax_scores(T, E), K, **options)


def test_from_the_command_line(tmp_path, capsys):
    scores = softmax_scores(600, E)
    np.save(tmp_path / "scores.npy", scores)
    words = ["solve", str(tmp_path / "scores.npy"), "--top-k", "3", "--devices", "4"]
    assert main([*words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["device_loads"] == [450] * 4
    costs = equipoise.balance_costs(scores, 3, [4, E])
    assert figures["given_up"] == {
        "4 devices": costs[0].given_up,
        "16 experts": costs[1].given_up,
    }
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "loads of devices" in text
    assert f"{100 * costs[0].given_up:.4f} %" in text
    np.save(tmp_path / "shift.npy", np.linspace(0, 1, E))
    assert main([*words, "--shift", str(tmp_path / "shift.npy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["given_shift"]["dual_gap"] is None
