"""Regret in hindsight, against linear programs and every constant that can be added to a shift."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import equipoise
from equipoise.optimum.hindsight import (
    MOST_JUDGED,
    dual_at_shift,
    judged_steps,
    look_back,
    wanted_loads,
)
from equipoise.optimum.problem import Problem


def drifting(batches, tokens, experts, drift, seed=0):
    rng = np.random.default_rng(seed)
    popularity = rng.normal(size=experts)
    found = []
    for _ in range(batches):
        logits = rng.normal(size=(tokens, experts)) + popularity
        found.append(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
        popularity = popularity + drift * rng.normal(size=experts)
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(1, 20), st.integers(0, 2**20), st.data())
def test_the_constant_is_the_best_one(experts, tokens, seed, data):
    top_k = data.draw(st.integers(1, experts))
    rng = np.random.default_rng(seed)
    scores, shift = rng.random((tokens, experts)), rng.normal(size=experts)
    problem = Problem.of(scores, top_k)
    # f(p + c) is piecewise linear in c, with corners where an expert's shift becomes 0
    tried = [problem.dual(shift + c) for c in (*-shift, 0.0)]
    assert dual_at_shift(scores, top_k, shift) == pytest.approx(min(tried), rel=1e-12)


@pytest.mark.parametrize("tokens", [64, 61])
def test_own_optimum_is_the_least_dual(tokens):
    (batch,) = drifting(1, tokens, 4, 0.0)
    found = look_back([batch], 2)
    assert found.own_duals[0] == pytest.approx(equipoise.solve(batch, 2).value)
    assert found.regret_of(found.own_duals).dynamic == 0
    assert found.path_length == 0
    near = [dual_at_shift(batch, 2, found.best_fixed + d) for d in 0.01 * np.eye(4)]
    assert min(near) >= found.own_duals[0] - 1e-9


def test_best_fixed_shift_is_best_of_all():
    batches = drifting(5, 64, 4, 0.3)
    found = look_back(batches, 2)

    def total(shift):
        return sum(dual_at_shift(batch, 2, shift) for batch in batches)

    search = minimize(total, np.zeros(4), method="Nelder-Mead", options={"xatol": 1e-6})
    assert sum(found.fixed_duals) <= search.fun + 1e-6
    assert sum(found.fixed_duals) == pytest.approx(search.fun, rel=1e-4)


def test_following_drift_beats_every_fixed_shift():
    batches = drifting(30, 512, 8, 0.3)
    found = look_back(batches, 2)
    leading = [dual_at_shift(b, 2, look_back([b], 2).best_fixed) for b in batches]
    regret = found.regret_of(leading)
    assert regret.fixed < 0
    assert regret.dynamic == pytest.approx(0, abs=1e-6)
    assert regret.path_length > 1
    unmoved = found.regret_of([dual_at_shift(b, 2, np.zeros(8)) for b in batches])
    assert unmoved.dynamic > unmoved.fixed > 0
    assert 0 < unmoved.fixed_share < unmoved.dynamic_share < 1


def test_unequal_targets_are_judged_as_asked():
    (batch,) = drifting(1, 60, 4, 0.0)
    target = [2.0, 1.0, 1.0, 1.0]
    found = look_back([batch], 2, target=target)
    solved = equipoise.solve(batch, 2, target=wanted_loads(target, 60, 2))
    assert found.own_duals[0] == pytest.approx(solved.value)
    assert found.own_duals[0] != pytest.approx(look_back([batch], 2).own_duals[0], rel=1e-4)


def test_long_rows_are_thinned_evenly():
    steps = judged_steps(range(100_000), 64, 8)
    assert len(steps) == MOST_JUDGED
    assert (steps[0], steps[-1]) == (0, 99_999)
    assert np.ptp(np.diff(steps)) <= 1
    assert len(judged_steps(range(90), 4096, 896)) < 10
    assert judged_steps(range(90), 4096, 64) == list(range(90))


def test_a_wrong_number_of_duals_is_refused():
    found = look_back(drifting(2, 16, 4, 0.0), 1)
    with pytest.raises(ValueError, match="1 duals for 2 batches"):
        found.regret_of([1.0])
    with pytest.raises(ValueError, match="no batch"):
        look_back([], 1)
