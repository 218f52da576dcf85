"""The exact optimum of the assignment problem, with its proof.

    solution = equipoise.solve(scores, top_k=6)
    solution.loads, solution.shift, solution.gap
    solution.verify(scores)

In three stages. Newton on a sample of the tokens, then on a larger one, then on all brings the
loads within a few tokens of their targets (newton.py). Cheapest chains of moves among the tokens
near the boundary bring them there exactly (chains.py). One last pass writes the assignment.

Where ties are everywhere (scores from a coarse grid, many tokens alike) Newton stalls: the dual has
corners. Then the sample is solved exactly; its shift is a corner, and nearly the corner of all
tokens. Under it, ties go to the experts that need tokens, and chains do the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.optimum.bounds import sum_by_device
from equipoise.optimum.certificate import verify_solution
from equipoise.optimum.exact import ExactState, chain_seconds, exact_state, finish_exactly
from equipoise.optimum.newton import Descent, Region, descend_dual
from equipoise.optimum.problem import Problem, readable_shift
from equipoise.optimum.sums import value_and_best
from equipoise.optimum.topk import EVERY_TOKEN, MANY_EXPERTS, boundary_under, choice_under
from equipoise.optimum.whole_numbers import units_in_one, write_choices
from equipoise.storage.arrays import Array

ReportLine = Callable[[str], None]
"""called with a line of text at every stage"""

_SAMPLES = (2048, 16384)
"""tokens; each a start for the next"""


_WORTH_TELLING = 5.0
"""seconds: an estimate below that is not shown"""


@dataclass(frozen=True)
class Solution:
    """An assignment, the shift that proves it optimal, and what it cost to find.

    Example:
        >>> optimum = equipoise.solve(np.random.default_rng(0).random((64, 4), np.float32), 2)
        >>> optimum.loads.tolist(), optimum.experts.shape
        ([32, 32, 32, 32], (64, 2))
    """

    experts: Array
    """(T, K) int64, by falling scores + shift"""
    loads: Array
    """(E,) int64"""
    shift: Array
    """(E,) float64: an optimal dual"""
    value: float
    dual_value: float
    rounding_bound: float
    """what float64 may make of a gap of 0"""
    seconds: float
    """spent solving, without `loading_seconds`"""
    passes: float
    """over all the scores; a look at half the tokens is half a pass"""
    top_k: int
    lower: Array
    upper: Array
    """(E,) the loads that were allowed"""
    loading_seconds: float = 0.0
    """spent loading compiled kernels, or compiling them where this machine has not yet; 0 but for
    the first solution of a process
    """
    place: Array | None = None
    """(E,) the device of each expert, where devices were asked for; lower and upper are theirs"""

    def __repr__(self) -> str:
        """One line: arrays of a million tokens are not for reading."""
        (T, K), E = self.experts.shape, len(self.loads)
        return (
            f"Solution(tokens={T}, experts={E}, top_k={K}, loads={load_range(self.loads)}, "
            f"value={self.value:.9g}, gap={self.gap:.2g}, seconds={self.seconds:.3g})"
        )

    @property
    def gap(self) -> float:
        """dual_value - value: 0 at the optimum, up to `rounding_bound`."""
        return self.dual_value - self.value

    @property
    def rounded_target(self) -> bool:
        """Whether a target was no whole number, so that loads are its floor or its ceiling."""
        return bool((self.lower != self.upper).any())

    @property
    def device_loads(self) -> Array:
        """(D,) int64: what the bounds are of; the loads themselves without devices."""
        return self.loads if self.place is None else sum_by_device(self.loads, self.place)

    def verify(self, scores: Any) -> None:
        """Check the proof from scratch, by numpy alone; raises ValueError naming what fails."""
        verify_solution(self, scores)


def solve(
    scores: Any,
    top_k: int,
    *,
    target: Any = None,
    devices: Any = None,
    shift: Any = None,
    progress: ReportLine | None = None,
) -> Solution:
    """Assign tokens to experts, K each, with given loads and the greatest sum of scores.

    The loads are those of experts, or of devices that hold several (bounds.py).

    Args:
        scores: (T, E) float32 or float64, numpy or a CPU tensor. Read in place if contiguous,
            else copied.
        top_k: experts of a token.
        target: (E,) loads; default T*K/E each. Where not whole, the load is the floor or the
            ceiling, whichever is best. With devices (D,) capacities, default T*K/D each.
        devices: how many, each with an equal block of consecutive experts; or the device of every
            expert, as E numbers. Loads then are right for devices, and experts free within.
        shift: (E,) where to start, such as the shift of the batch before. Any is right; a good one
            is faster.
        progress: called with a line of text at every stage.

    Example:
        >>> import numpy as np
        >>> scores = np.random.default_rng(0).random((1000, 8), dtype=np.float32)
        >>> equipoise.solve(scores, top_k=2).loads.tolist()
        [250, 250, 250, 250, 250, 250, 250, 250]
    """
    report = progress or (lambda line: None)
    problem = Problem.of(scores, top_k, target, devices)
    start = None if shift is None else _given_start(shift, problem)
    loading_seconds = _load_kernels(problem.scores.dtype, report)
    begin = time.perf_counter()
    scaled, exponent = problem.near_one()
    search = _Search(scaled, report)
    experts, found = search.run(
        start if start is None else np.ldexp(_clip_shift(start, 4 * problem.largest), -exponent)
    )
    found = np.ldexp(found, exponent)
    value, best = value_and_best(problem.scores, found, experts)
    return Solution(
        experts=experts,
        loads=np.bincount(experts.ravel(), minlength=problem.num_experts),
        shift=found,
        value=value,
        dual_value=math.fsum([best, *problem.price(found)]),
        rounding_bound=problem.rounding_bound(found),
        seconds=time.perf_counter() - begin,
        passes=search.read / problem.num_tokens,
        top_k=problem.top_k,
        lower=problem.lower,
        upper=problem.upper,
        loading_seconds=loading_seconds,
        place=None if devices is None else problem.place,
    )


def load_range(loads: Array) -> str:
    """Loads in a word: "500", or "499..501" where they differ."""
    least, greatest = int(loads.min()), int(loads.max())
    return f"{least}" if least == greatest else f"{least}..{greatest}"


_loaded: set[str] = set()
"""the types of scores whose kernels this process has loaded"""


def _load_kernels(dtype: np.dtype[Any], report: ReportLine) -> float:
    """Load all kernels by solving a small problem of the same type, once; the seconds it took.

    A kernel is loaded, or compiled, where it is first called: else that would be in the time of
    whatever is solved first, which it can exceed a hundred times.
    """
    if dtype.name in _loaded:
        return 0.0
    report("loading kernels")
    begin = time.perf_counter()
    rng = np.random.default_rng(0)
    # as many tokens as it takes for a sample, and experts that are not equally liked
    scores = rng.random((4 * _SAMPLES[0], 8)) * np.linspace(1, 2, 8)
    problem = Problem.of(scores.astype(dtype), 2, None)
    scaled, _ = problem.near_one()
    experts, shift = _Search(scaled, lambda line: None).run(None)
    value_and_best(problem.scores, shift, experts)
    boundary_under(np.zeros((1, MANY_EXPERTS), dtype), np.zeros(MANY_EXPERTS), 1)
    _loaded.add(dtype.name)
    return time.perf_counter() - begin


class _Search:
    """One solve, and how many tokens it has looked at."""

    def __init__(self, problem: Problem, progress: ReportLine) -> None:
        self.problem = problem
        self.progress = progress
        self.read = 0
        self.scale = units_in_one(problem.largest)

    def run(self, start: Array | None) -> tuple[Array, Array]:
        """Experts (T, K) and shift (E,)."""
        problem = self.problem
        if problem.top_k == problem.num_experts:
            # every expert takes every token: nothing to choose
            shift = np.zeros(problem.num_experts)
            return choice_under(problem.scores, shift, problem.top_k), shift
        shift, radius = self._find_start(start)
        state = self._solve_exactly(EVERY_TOKEN, shift, radius)
        self.progress("writing down the assignment")
        shift = state.float_shift
        self.read += problem.num_tokens
        experts = choice_under(problem.scores, shift, problem.top_k)
        write_choices(problem.scores, state.tokens, self.scale, state.shift, state.chosen, experts)
        return experts, shift - shift.mean() if problem.whole else shift

    def _find_start(self, given: Array | None) -> tuple[Array, float | None]:
        """A shift to start from, and how far to trust Newton there: the given one if it does well,
        else by samples.
        """
        problem = self.problem
        shift, radius = np.zeros(problem.num_experts), None
        if given is not None:
            shift = given
        for size in _SAMPLES:
            if 4 * size > problem.num_tokens:
                break
            tokens = np.arange(size, dtype=np.int64) * problem.num_tokens // size
            if given is not None and self._does_well(shift, tokens):
                break
            self.progress(f"a sample of {size:,} tokens")
            shift, radius = self._solve_roughly(tokens, shift, radius)
        return shift, radius

    def _does_well(self, shift: Array, tokens: Array) -> bool:
        """Whether loads on a sample are off by little more than chance: then Newton on the sample
        would gain nothing.
        """
        seen = boundary_under(self.problem.scores, shift, self.problem.top_k, tokens)
        self.read += len(tokens)
        target, loads = self._share_of_target(tokens), self.problem.bounds.held(seen.loads)
        chance = np.sqrt(2 / np.pi * np.maximum(target, 1))
        return bool(np.abs(loads - target).mean() < 2 * chance.mean())

    def _share_of_target(self, tokens: Array) -> Array:
        """(D,) the loads that these tokens should make; EVERY_TOKEN makes all of them."""
        share = len(tokens) / self.problem.num_tokens if len(tokens) else 1.0
        return self.problem.target * share

    def _solve_roughly(
        self, tokens: Array, shift: Array, radius: float | None
    ) -> tuple[Array, float | None]:
        """Newton on a sample; where ties stop it, the sample's exact optimum."""
        descent = self._run_newton(tokens, shift, radius)
        if descent.close:
            return descent.look.shift, descent.radius
        return self._solve_exactly(tokens, shift, radius, descent).float_shift, None

    def _run_newton(self, tokens: Array, shift: Array, radius: float | None) -> Descent:
        whole = Region.whole(self.problem.scores, self.problem.top_k, self.problem.largest, tokens)
        target = self._share_of_target(tokens)
        # a sample's own noise is twice that
        chance = 0.2 * np.sqrt(target).sum() if len(tokens) else 0.0
        excess = max(2.0 * self.problem.num_experts, float(chance))
        place = self.problem.place
        descent = descend_dual(whole, target, shift, place, excess=excess, radius=radius)
        self.read += descent.read
        return descent

    def _solve_exactly(
        self, tokens: Array, shift: Array, radius: float | None, descent: Descent | None = None
    ) -> ExactState:
        """The optimum of these tokens, from Newton's last shift, or from its first if better."""
        self.progress(f"Newton on {len(tokens) or self.problem.num_tokens:,} tokens")
        descent = descent or self._run_newton(tokens, shift, radius)
        bounds = self.problem.bounds
        if len(tokens):
            share = self._share_of_target(tokens)
            bounds = bounds._replace(
                lower=np.floor(share).astype(np.int64), upper=np.ceil(share).astype(np.int64)
            )
        region, look = descent.region, descent.look
        state = exact_state(region, look, self.scale, bounds, 0.0)
        if not descent.close:
            self.read += len(descent.whole)
            start = exact_state(descent.whole, descent.first, self.scale, bounds, 0.0)
            if start.total_excess < state.total_excess:
                region, look, state = descent.whole, descent.first, start
        seconds = chain_seconds(state.total_excess, self.problem.num_experts)
        longest = f" (may take {seconds:.0f} s)" if seconds >= _WORTH_TELLING else ""
        self.progress(f"cheapest chains for {state.total_excess:,} tokens{longest}")
        state, read = finish_exactly(descent.whole, region, look, self.scale, bounds, state)
        self.read += read
        return state


def _given_start(shift: Any, problem: Problem) -> Array:
    """(E,) the shift to start from: of each device one number, the mean of its experts'."""
    given, place = readable_shift(shift, problem.num_experts), problem.place
    return np.asarray((sum_by_device(given, place) / np.bincount(place))[place])


def _clip_shift(shift: Array, size: float) -> Array:
    """Centred and clipped: a shift beyond a few times the largest score changes nothing more, and
    its sums would lose the scores' digits.
    """
    return np.clip(shift - np.median(shift), -size, size)
