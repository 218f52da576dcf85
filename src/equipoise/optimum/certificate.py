"""A check of a Solution's proof by numpy in float64, apart from how the solution was found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from equipoise.optimum.bounds import device_places, first_experts
from equipoise.optimum.problem import Problem, readable_scores, readable_shift
from equipoise.storage.arrays import Array


class Certified(Protocol):
    """What a Solution claims. (Not the class itself: this module knows nothing of the search.)"""

    @property
    def experts(self) -> Array: ...
    @property
    def loads(self) -> Array: ...
    @property
    def shift(self) -> Array: ...
    @property
    def value(self) -> float: ...
    @property
    def dual_value(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def lower(self) -> Array: ...
    @property
    def upper(self) -> Array: ...
    @property
    def place(self) -> Array | None: ...


def verify_solution(solution: Certified, scores: Any) -> None:
    """Raise ValueError unless the assignment is allowed, is a top-K of scores + shift, and its
    value equals the dual's.
    """
    scores = readable_scores(scores)
    place = device_places(solution.place, scores.shape[1])
    problem = Problem.of(scores, solution.top_k)
    problem = replace(problem, lower=solution.lower, upper=solution.upper, place=place)
    _require_allowed(solution, problem)
    _require_moderate_shift(solution, problem)
    _require_one_price(solution, place)
    _require_top_k(solution, problem)
    value, dual_value = problem.value(solution.experts), problem.dual(solution.shift)
    bound = problem.rounding_bound(solution.shift)
    if not abs(dual_value - value) <= bound:
        raise ValueError(
            f"the dual's value {dual_value:.17g} is not the assignment's, {value:.17g}: they "
            f"differ by more than rounding can, {bound:.3g}"
        )
    for name, claimed, found in (
        ("value", solution.value, value),
        ("dual_value", solution.dual_value, dual_value),
    ):
        if not abs(claimed - found) <= bound:
            raise ValueError(f"{name} is said to be {claimed:.17g}, but is {found:.17g}")


def _require_allowed(solution: Certified, problem: Problem) -> None:
    """K distinct experts a token, and every load within its bounds."""
    experts = np.sort(solution.experts, axis=1)
    if experts.shape != (problem.num_tokens, problem.top_k):
        raise ValueError(
            f"experts have shape {experts.shape}, not {(problem.num_tokens, problem.top_k)}"
        )
    if experts.min() < 0 or experts.max() >= problem.num_experts:
        raise ValueError(f"experts are not all between 0 and {problem.num_experts - 1}")
    twice = np.flatnonzero((experts[:, 1:] == experts[:, :-1]).any(axis=1))
    if len(twice):
        raise ValueError(
            f"token {int(twice[0])} has an expert twice: {solution.experts[twice[0]].tolist()}"
        )
    loads = np.bincount(experts.ravel(), minlength=problem.num_experts)
    if not np.array_equal(loads, solution.loads):
        raise ValueError("loads are not what the experts' rows count up to")
    held = problem.bounds.held(loads)
    wrong = np.flatnonzero((held < problem.lower) | (held > problem.upper))
    if len(wrong):
        k, what = int(wrong[0]), "expert" if solution.place is None else "device"
        raise ValueError(
            f"{what} {k} has {held[k]} tokens, not {problem.lower[k]} to {problem.upper[k]}"
        )


def _require_one_price(solution: Certified, place: Array) -> None:
    """The dual of device capacities has one number for all experts of a device."""
    shift = np.asarray(solution.shift)
    apart = np.flatnonzero(shift != shift[first_experts(place)][place])
    if len(apart):
        k = int(apart[0])
        raise ValueError(
            f"expert {k} has shift {shift[k]:.17g}, others of device {place[k]} have another: a "
            "proof for devices has one number for each"
        )


def _require_moderate_shift(solution: Certified, problem: Problem) -> None:
    """What rounding allows grows with the shift: beside a huge one, scores are lost in it, and any
    assignment would pass.

    An optimal shift need not span more than 2 E times the largest |score|: two experts' shifts
    differ by the cost of a chain of at most E moves. With the limit set here, `rounding_bound`
    stays below 2e-10 of TK times the largest |score| up to E = 4096.
    """
    shift = readable_shift(solution.shift, problem.num_experts)
    size, most = float(np.abs(shift).max()), max(1024, 4 * problem.num_experts) * problem.largest
    # scores that are all 0 have no digits to lose: every allowed assignment is optimal
    if size > most and problem.largest:
        raise ValueError(
            f"the shift reaches {size:.3g}, and scores at most {problem.largest:.3g}: its rounding "
            f"swamps them, so it proves nothing; a proof needs a shift up to {most:.3g} (centre "
            "it, or solve again)"
        )


def _require_top_k(solution: Certified, problem: Problem) -> None:
    """No expert left out beats one chosen, up to the rounding of the shift and of one sum."""
    shift = np.asarray(solution.shift, np.float64)
    allowed = 8 * np.finfo(np.float64).eps * (problem.largest + np.abs(shift).max())
    for start in range(0, problem.num_tokens, 16384):
        rows = slice(start, start + 16384)
        shifted = problem.scores[rows] + shift
        lowest = np.take_along_axis(shifted, solution.experts[rows], 1).min(axis=1)
        np.put_along_axis(shifted, solution.experts[rows], -np.inf, 1)
        worse = np.flatnonzero(shifted.max(axis=1) > lowest + allowed)
        if len(worse):
            token = start + int(worse[0])
            raise ValueError(
                f"token {token} chose {solution.experts[token].tolist()}, not a top-K of its "
                "scores + shift"
            )
