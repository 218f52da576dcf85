"""The slow twin: the same program written down for a linear-programming solver (scipy's HiGHS),
primal and dual apart.

    primal  max sum scores x      sum_k x_ik = K,  lower_k <= sum_i x_ik <= upper_k,  0 <= x <= 1
    dual    min K sum_i y_i + sum_ik z_ik + sum_k (upper_k b_k - lower_k a_k)
            y_i + z_ik + b_k - a_k >= scores_ik,   z, a, b >= 0         (p_k = a_k - b_k)

With devices (bounds.py) the loads, a and b are theirs.

z is the multiplier of x <= 1, which the paper's printed dual forgets: without it the two agree only
for K = 1 (errata 1). Thousands of variables are the most it is good for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from equipoise.optimum.problem import Problem
from equipoise.storage.arrays import Array


class LPOptimum(NamedTuple):
    """The optimum as HiGHS has it."""

    value: float
    dual_value: float
    assignment: Array
    """(T, E), 0 or 1 up to the solver's tolerance"""
    shift: Array
    """(E,)"""


def solve_by_lp(scores: Any, top_k: int, *, target: Any = None, devices: Any = None) -> LPOptimum:
    """The optimum by HiGHS, of the primal and of the dual, each solved on its own."""
    problem = Problem.of(scores, top_k, target, devices)
    value, assignment = _solve_primal(problem)
    dual_value, shift = _solve_dual(problem)
    return LPOptimum(value, dual_value, assignment, shift)


def _solve_primal(problem: Problem) -> tuple[float, Array]:
    T, E = problem.scores.shape
    per_token = sparse.kron(sparse.identity(T), np.ones((1, E)), format="csr")
    per_expert = sparse.kron(np.ones((1, T)), _device_matrix(problem), format="csr")
    result = linprog(
        -problem.scores.astype(np.float64).ravel(),
        A_ub=sparse.vstack([per_expert, -per_expert]),
        b_ub=np.concatenate([problem.upper, -problem.lower]),
        A_eq=per_token,
        b_eq=np.full(T, problem.top_k),
        bounds=(0, 1),
        method="highs",
    )
    _require_solved(result)
    return -float(result.fun), result.x.reshape(T, E)


def _solve_dual(problem: Problem) -> tuple[float, Array]:
    T, E = problem.scores.shape
    # variables in order: y (T, free), z (T*E), a (D), b (D)
    of_token = sparse.kron(sparse.identity(T), np.ones((E, 1)))
    of_expert = sparse.kron(np.ones((T, 1)), _device_matrix(problem).T)
    D = len(problem.lower)
    result = linprog(
        np.concatenate([np.full(T, problem.top_k), np.ones(T * E), -problem.lower, problem.upper]),
        A_ub=-sparse.hstack(
            [of_token, sparse.identity(T * E), -of_expert, of_expert], format="csr"
        ),
        b_ub=-problem.scores.astype(np.float64).ravel(),
        bounds=[(None, None)] * T + [(0, None)] * (T * E + 2 * D),
        method="highs",
    )
    _require_solved(result)
    return float(result.fun), (result.x[-2 * D : -D] - result.x[-D:])[problem.place]


def _device_matrix(problem: Problem) -> Any:
    """(D, E): 1 where an expert is on a device; the identity where experts are alone."""
    E, D = problem.num_experts, len(problem.lower)
    return sparse.csr_matrix((np.ones(E), (problem.place, np.arange(E))), shape=(D, E))


def _require_solved(result: Any) -> None:
    if result.status != 0:
        raise RuntimeError(f"HiGHS did not solve the program: {result.message}")
