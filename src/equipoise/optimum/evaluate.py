"""What a shift achieves, and what it gives up against the best assignment with exact loads.

Two numbers belong together: how even the loads are, and how much of the scores is kept. No
balancing keeps the most scores; sending tokens anywhere balances perfectly. The exact optimum is
the most that can be kept with even loads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.optimum.problem import Problem, readable_shift
from equipoise.optimum.solve import Solution, load_range, solve
from equipoise.optimum.sums import value_and_best
from equipoise.optimum.topk import choice_under
from equipoise.storage.arrays import Array


@dataclass(frozen=True)
class Evaluation:
    """A shift's choice, beside the exact optimum of the same scores."""

    experts: Array
    """(T, K)"""
    loads: Array
    """(E,) int64"""
    value: float
    """sum of the chosen scores"""
    dual_value: float
    """the dual at this shift; inf where devices share loads and their experts have other shifts"""
    imbalance: float
    """mean |load - target| / target, over experts (or devices) with a target"""
    max_violation: float
    """greatest load / target - 1"""
    optimum: Solution

    def __repr__(self) -> str:
        """One line: arrays of a million tokens are not for reading."""
        return (
            f"Evaluation(imbalance={self.imbalance:.4g}, max_violation={self.max_violation:.4g}, "
            f"given_up={self.given_up:.3g}, dual_gap={self.dual_gap:.3g}, "
            f"loads={load_range(self.loads)})"
        )

    @property
    def given_up(self) -> float:
        """Affinity given up against the optimum, as a share of its value. Below 0 where uneven
        loads keep more of the scores than exact balance can, and never below 0 by rounding alone.
        """
        lacking = self.optimum.value - self.value
        if not self.optimum.value or -self.optimum.rounding_bound <= lacking < 0:
            return 0.0
        return lacking / abs(self.optimum.value)

    @property
    def dual_gap(self) -> float:
        """How far this shift is from an optimal dual, in value. Never below 0 but for rounding."""
        return self.dual_value - self.optimum.value


def evaluate(
    scores: Any,
    top_k: int,
    shift: Any,
    *,
    target: Any = None,
    devices: Any = None,
    optimum: Solution | None = None,
) -> Evaluation:
    """What `shift` achieves on these scores, beside their exact optimum.

    Args:
        scores: (T, E).
        top_k: K.
        shift: (E,).
        target: loads that experts should have; even by default.
        devices: as in `solve`: loads are judged by device.
        optimum: of `equipoise.solve`, if it is known; else it is solved, starting from `shift`.

    Example:
        >>> import numpy as np
        >>> scores = np.random.default_rng(0).random((1000, 8), dtype=np.float32)
        >>> equipoise.evaluate(scores, 2, np.zeros(8)).imbalance < 0.1
        True
    """
    problem = Problem.of(scores, top_k, target, devices)
    shift = readable_shift(shift, problem.num_experts)
    if optimum is None:
        optimum = solve(problem.scores, top_k, target=target, devices=devices, shift=shift)
    elif optimum.experts.shape != (problem.num_tokens, problem.top_k):
        raise ValueError(
            f"the optimum is of {optimum.experts.shape}, these scores need "
            f"{(problem.num_tokens, top_k)}"
        )
    experts = choice_under(problem.scores, shift, problem.top_k)
    loads = np.bincount(experts.ravel(), minlength=problem.num_experts)
    value, best = value_and_best(problem.scores, shift, experts)
    wanted = problem.target
    asked = wanted > 0
    off = (problem.bounds.held(loads) - wanted)[asked] / wanted[asked]
    return Evaluation(
        experts=experts,
        loads=loads,
        value=value,
        dual_value=math.fsum([best, *problem.price(shift)]),
        imbalance=float(np.abs(off).mean()),
        max_violation=float(off.max()),
        optimum=optimum,
    )
