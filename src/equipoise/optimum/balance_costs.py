"""What exactly even loads cost: of experts, of devices, or of nothing.

Even experts are a means. A forward waits for its fullest device, and even devices are enough for
that; each finer division gives up at least as much of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.optimum.problem import Problem
from equipoise.optimum.solve import Solution, solve
from equipoise.optimum.sums import value_and_best
from equipoise.optimum.topk import choice_under


@dataclass(frozen=True)
class BalanceCost:
    """The exact optimum with even devices, beside every token's K best experts."""

    devices: int
    """E: even experts; 1: no balancing"""
    value: float
    """the greatest sum of scores"""
    given_up: float
    """(free - value) / |free|, where free is the sum of every token's K largest scores"""
    solution: Solution

    def __repr__(self) -> str:
        return (
            f"BalanceCost(devices={self.devices}, value={self.value:.9g}, "
            f"given_up={self.given_up:.4g})"
        )


def balance_costs(scores: Any, top_k: int, devices: Sequence[int]) -> list[BalanceCost]:
    """The affinity that exactly even devices give up, for several numbers of devices.

    Args:
        scores: (T, E) float32 or float64, numpy or a CPU tensor.
        top_k: experts of a token.
        devices: numbers of devices, each with equal blocks of consecutive experts. E itself stands
            for even experts.

    Example:
        >>> import numpy as np
        >>> scores = np.random.default_rng(0).random((1000, 8)) * np.arange(1, 9)
        >>> [round(each.given_up, 3) for each in balance_costs(scores, 2, [1, 2, 8])]
        [0.0, 0.134, 0.195]
    """
    problem = Problem.of(scores, top_k)
    nothing = np.zeros(problem.num_experts)
    chosen = choice_under(problem.scores, nothing, problem.top_k)
    free, _ = value_and_best(problem.scores, nothing, chosen)
    return [_cost_of(solve(problem.scores, top_k, devices=each), each, free) for each in devices]


def _cost_of(solution: Solution, devices: int, free: float) -> BalanceCost:
    lost = free - solution.value
    given_up = 0.0 if abs(lost) <= solution.rounding_bound or not free else lost / abs(free)
    return BalanceCost(devices, solution.value, given_up, solution)
