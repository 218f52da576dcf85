"""The exact solver against two strangers: HiGHS on the linear program, OR-tools on the flow."""

import numpy as np
import pytest
from ortools.graph.python import min_cost_flow
from scipy.optimize import linprog

import equipoise
from equipoise.optimum.problem import Problem
from equipoise.optimum.reference import solve_by_lp
from tests.optimum.problems import allowed_target


def value_by_flow(scores, top_k, target):
    """OR-tools wants whole costs: exact for scores that are multiples of 2^-20."""
    T, E = scores.shape
    whole = np.rint(scores * 2.0**20).astype(np.int64)
    flow = min_cost_flow.SimpleMinCostFlow()
    tokens, experts = np.divmod(np.arange(T * E), E)
    flow.add_arcs_with_capacity_and_unit_cost(
        tokens, T + experts, np.ones(T * E, np.int64), -whole.ravel()
    )
    flow.set_nodes_supplies(np.arange(T + E), np.concatenate([np.full(T, top_k), -target]))
    assert flow.solve() == flow.OPTIMAL
    return -flow.optimal_cost() / 2.0**20


def random_problem(seed):
    draw = np.random.default_rng(seed)
    tokens, experts = int(draw.integers(1, 40)), int(draw.integers(1, 9))
    top_k = int(draw.integers(1, experts + 1))
    levels = draw.choice([2, 4, 256, 2**20])
    scores = np.floor(draw.random((tokens, experts)) * levels) / levels
    if draw.random() < 0.3:
        scores[:, 0] += 2
    if draw.random() < 0.3:
        scores = scores[draw.integers(0, tokens, tokens)]
    return (
        scores.astype(draw.choice([np.float32, np.float64])),
        top_k,
        allowed_target(draw, tokens, experts, top_k),
    )


@pytest.mark.parametrize("block", range(10))
def test_given_loads_against_both_judges(block):
    for seed in range(20 * block, 20 * block + 20):
        scores, top_k, target = random_problem(seed)
        solution = equipoise.solve(scores, top_k, target=target)
        solution.verify(scores)
        judged = solve_by_lp(scores, top_k, target=target)
        assert solution.value == pytest.approx(judged.value, rel=1e-9, abs=1e-9), seed
        assert solution.value == pytest.approx(judged.dual_value, rel=1e-9, abs=1e-9), seed
        assert solution.value == pytest.approx(value_by_flow(scores, top_k, target), rel=1e-9), seed


@pytest.mark.parametrize("block", range(5))
def test_floor_or_ceiling_against_the_linear_program(block):
    for seed in range(1000 + 20 * block, 1000 + 20 * block + 20):
        scores, top_k, _ = random_problem(seed)
        solution = equipoise.solve(scores, top_k)
        solution.verify(scores)
        assert solution.value == pytest.approx(
            solve_by_lp(scores, top_k).dual_value, rel=1e-9, abs=1e-9
        ), seed


def test_a_larger_problem_against_the_flow():
    draw = np.random.default_rng(0)
    scores = np.floor(draw.random((4096, 32)) * 2**20) / 2**20 + 0.2 * np.round(draw.random(32), 3)
    scores = np.rint(scores * 2**20) / 2**20
    solution = equipoise.solve(scores, 4)
    assert solution.value == pytest.approx(value_by_flow(scores, 4, np.full(32, 512)), rel=1e-12)


def printed_dual_optimum(scores, top_k):
    """The least of the dual as the paper prints it, a linear program of its own:

    min K sum_i y_i - L sum_k p_k,    y_i - p_k >= scores_ik
    """
    T, E = scores.shape
    rows = [[*-np.eye(T)[i], *np.eye(E)[k]] for i in range(T) for k in range(E)]
    cost = np.concatenate([np.full(T, top_k), np.full(E, -top_k * T / E)])
    result = linprog(cost, A_ub=rows, b_ub=-scores.ravel(), bounds=(None, None), method="highs")
    assert result.status == 0
    return result.fun


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_printed_dual_is_right_only_for_one_choice(top_k, seed):
    """Errata 1: without z the dual has no x <= 1; its own least value is the optimum for K = 1
    alone. The reduced dual's is for every K.
    """
    scores = np.random.default_rng(seed).random((16, 4))
    lp = solve_by_lp(scores, top_k)
    assert lp.value == pytest.approx(lp.dual_value)
    assert Problem.of(scores, top_k).dual(lp.shift) == pytest.approx(lp.value)
    printed = printed_dual_optimum(scores, top_k)
    if top_k == 1:
        assert printed == pytest.approx(lp.value)
    else:
        assert printed > lp.value + 0.1


def test_a_shift_that_is_not_centred_is_kept():
    """Errata 12: where floor and ceiling are allowed, a constant in the shift counts."""
    scores = np.random.default_rng(0).random((7, 3))
    solution = equipoise.solve(scores, 1)
    problem = Problem.of(scores, 1)
    assert problem.dual(solution.shift) == pytest.approx(solution.value)
    assert problem.dual(solution.shift + 0.5) > solution.value + 0.1
    assert problem.dual(solution.shift - 0.5) > solution.value + 0.1
