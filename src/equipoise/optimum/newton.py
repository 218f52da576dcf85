"""Newton's method on the dual: a shift under which loads are within a few tokens of their targets.

The dual (problem.py) is convex with gradient loads - target. Its second derivative (the paper's
second directional derivative) is the Laplacian of a graph on the experts: the weight between k and
l is how many tokens have k and l at their boundary, per unit of shift. Counted on the tokens whose
margin is below the trust radius it is a model good for steps of that size, and a step is accepted
by what it did to the dual itself.

A token whose margin exceeds max(dp) - min(dp) chooses the same experts under p + dp. So after one
look at all tokens, steps within a radius need only those whose margin is smaller: a `Region`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from equipoise.optimum.arrays import centred
from equipoise.optimum.bounds import first_experts, sum_by_device
from equipoise.optimum.topk import EVERY_TOKEN, Boundary, boundary_under
from equipoise.storage.arrays import Array

_TOKENS_PER_EXPERT = 16
"""at the boundary: enough to know an expert's curvature to about a fifth"""
_CG_ROUNDS = 100
"""of conjugate gradients, at most"""
_CG_TOLERANCE = 0.02
"""share of the gap that they may leave"""
_HESSIAN_WIDTH = 0.1
"""of a step: how widely the Hessian is counted"""


@dataclass(frozen=True)
class Region:
    """The tokens whose choice may change while the shift stays within `radius` of `center`, and the
    sum of the others.
    """

    scores: Array
    top_k: int
    largest: float
    """largest |score|"""
    tokens: Array
    """indices; topk.EVERY_TOKEN for all"""
    center: Array
    radius: float
    """in max - min of the shift's change"""
    frozen_loads: Array
    """of the tokens outside"""
    frozen_value: float
    """of the tokens outside, at the center"""

    @staticmethod
    def whole(scores: Array, top_k: int, largest: float, tokens: Array = EVERY_TOKEN) -> Region:
        E = scores.shape[1]
        return Region(
            scores, top_k, largest, tokens, np.zeros(E), np.inf, np.zeros(E, np.int64), 0.0
        )

    def __len__(self) -> int:
        return len(self.tokens) or len(self.scores)

    def left(self, shift: Array) -> float:
        """How far the shift may still go: tokens with a margin up to that are in the region."""
        return self.radius - float(np.ptp(shift - self.center))

    def holds(self, shift: Array) -> bool:
        return self.left(shift) > 0

    def look(self, shift: Array) -> Look:
        """Loads, value and boundary under a shift within the radius."""
        seen = boundary_under(self.scores, shift, self.top_k, self.tokens)
        loads = seen.loads + self.frozen_loads
        value = seen.value + self.frozen_value + float(self.frozen_loads @ (shift - self.center))
        return Look(shift, loads, value, seen)

    def narrowed(self, look: Look, radius: float) -> tuple[Region, Look]:
        """Only the tokens with a margin up to `radius` under the look's shift, and their look."""
        near = np.flatnonzero(look.seen.margin <= radius)
        if not len(near):
            # an empty list would mean all
            near = np.zeros(1, np.int64)
        tokens = self.tokens[near] if len(self.tokens) else near
        seen = boundary_under(self.scores, look.shift, self.top_k, tokens)
        frozen_loads, frozen_value = look.loads - seen.loads, look.value - seen.value
        region = Region(
            self.scores,
            self.top_k,
            self.largest,
            tokens,
            look.shift,
            radius,
            frozen_loads,
            frozen_value,
        )
        return region, Look(look.shift, look.loads, look.value, seen)


@dataclass(frozen=True)
class Look:
    """One evaluation: shift, loads (E,) and value over all tokens, and the region's boundary."""

    shift: Array
    loads: Array
    value: float
    seen: Boundary


@dataclass
class Descent:
    """Where Newton stopped."""

    look: Look
    """the last one"""
    region: Region
    """where it was made"""
    whole: Region
    radius: float
    """trust radius"""
    read: int
    """tokens looked at"""
    first: Look
    """at the shift it began with, over the whole region"""
    close: bool = False
    """whether the loads came as near as was asked"""


def descend_dual(
    whole: Region,
    target: Array,
    shift: Array,
    place: Array,
    *,
    excess: float,
    radius: float | None,
    rounds: int = 60,
) -> Descent:
    """Lower the dual until the tokens in excess are at most `excess`, or nothing more is gained.

    `target` (D,) is of devices, whose experts `place` (E,) share a number; of experts, where
    each is alone.
    """
    look = whole.look(shift)
    state = Descent(look, whole, whole, radius or _first_radius(look.seen.margin), len(whole), look)
    smallest = 1e-9 * state.radius
    for _ in range(rounds):
        gap = target - sum_by_device(state.look.loads, place)
        state.close = bool(np.abs(gap).sum() <= 2 * excess)
        if state.close or state.radius < smallest:
            break
        _narrow_region(state)
        _trust_step(state, target, gap, place)
    return state


def _first_radius(margin: Array) -> float:
    return 8 * float(margin.mean(dtype=np.float64)) or 1.0


def _narrow_region(state: Descent) -> None:
    """Leave out tokens that steps of this size cannot reach, where that halves the work."""
    reach = 1.01 * state.radius
    if reach > state.region.left(state.look.shift):
        return
    if np.count_nonzero(state.look.seen.margin <= reach) < len(state.region) / 2:
        state.region, state.look = state.region.narrowed(state.look, reach)
        state.read += len(state.region)


def _trust_step(state: Descent, target: Array, gap: Array, place: Array) -> None:
    """One trust-region step: accepted if the dual falls; the radius follows how well the model
    predicted the fall.
    """
    laplacian, change, held_back = _damped_newton_step(state.look.seen, gap, place, state.radius)
    shift = state.look.shift + change[place]
    region = state.region if state.region.holds(shift) else state.whole
    after = region.look(shift)
    state.read += len(region)
    predicted = float(gap @ change - 0.5 * change @ (laplacian @ change))
    first = first_experts(place)
    before = state.look.value - target @ state.look.shift[first]
    fall = before - (after.value - target @ shift[first])
    if fall <= 0:
        state.radius /= 4
        return
    state.region, state.look = region, after
    if fall < 0.3 * predicted:
        state.radius /= 2
    elif fall > 0.7 * predicted:
        # near the optimum steps shrink by themselves; a smaller radius leaves fewer tokens to read
        smaller = max(float(np.ptp(change)), state.radius / 16)
        state.radius = 2 * state.radius if held_back else smaller


def _damped_newton_step(
    seen: Boundary, gap: Array, place: Array, radius: float
) -> tuple[Any, Array, bool]:
    """The Hessian, the step, and whether the radius held it back.

    The Hessian is counted on a tenth of the step's width, or on as many tokens as it needs.
    """
    enough = min(len(seen.margin) - 1, _TOKENS_PER_EXPERT * len(gap))
    width = float(np.partition(seen.margin, enough)[enough]) or radius
    while True:
        laplacian = _boundary_laplacian(seen, place, len(gap), width)
        change, held_back = _step_within(laplacian, gap, radius)
        spread = float(np.ptp(change))
        if not width < _HESSIAN_WIDTH * spread:
            return laplacian, change, held_back
        width = max(2 * width, _HESSIAN_WIDTH * spread)


def _boundary_laplacian(seen: Boundary, place: Array, D: int, width: float) -> Any:
    """(D, D) sparse, the Hessian of the dual: tokens at the boundary of each pair of experts, or
    devices, per unit of shift. Those between experts of one device cancel.
    """
    near = seen.margin <= width
    k, l = place[seen.kth[near]], place[seen.runner_up[near]]
    # A token may go one way only; half for each way it might have been counted.
    weight = sparse.coo_matrix((np.full(len(k), 0.5 / width), (k, l)), shape=(D, D)).tocsr()
    weight = weight + weight.T
    return sparse.diags(np.asarray(weight.sum(axis=1)).ravel(), format="csr") - weight


def _step_within(laplacian: Any, gap: Array, radius: float) -> tuple[Array, bool]:
    """The Newton step, damped until the shift's spread changes by no more than the radius; and
    whether damping was needed.
    """
    degree = laplacian.diagonal()
    # damping beyond which the step is short enough
    most = 2 * float(np.ptp(gap)) / radius
    change = _conjugate_gradients(laplacian, degree, gap, 1e-6 * degree.mean() or most)
    if np.ptp(change) <= radius:
        return change, False
    least, damping = 1e-5 * most, 0.03 * most
    # the spread falls as damping grows; anything between half the radius and all of it will do
    for _ in range(12):
        change = _conjugate_gradients(laplacian, degree, gap, damping)
        spread = np.ptp(change)
        if radius / 2 <= spread <= radius:
            break
        least, most = (damping, most) if spread > radius else (least, damping)
        damping = float(np.sqrt(least * most))
    return change * min(1.0, radius / float(np.ptp(change))), True


def _conjugate_gradients(laplacian: Any, degree: Array, gap: Array, damping: float) -> Array:
    """(laplacian + damping) change = gap with mean 0, roughly: the Hessian is a count anyway."""
    scale = 1 / (degree + damping)
    change = np.zeros_like(gap)
    rest = direction = centred(gap)
    strength = 0.0
    for _ in range(_CG_ROUNDS):
        steep = centred(scale * rest)
        before, strength = strength, float(rest @ steep)
        direction = steep + strength / before * direction if before else steep
        bent = laplacian @ direction + damping * direction
        step = strength / float(direction @ bent)
        change = change + step * direction
        rest = rest - step * bent
        if np.abs(rest).sum() <= _CG_TOLERANCE * np.abs(gap).sum():
            break
    return change
