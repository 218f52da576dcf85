"""From loads that are nearly right to loads that are: which tokens to look at, and how far.

Only tokens near their boundary can move cheaply, so chains are sought among those within a reach;
where that proves too short it is widened. All other tokens' choices are plain: floats tell them
safely, since their margin exceeds what rounding can do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from equipoise.optimum import chains as paths
from equipoise.optimum.newton import Look, Region
from equipoise.optimum.topk import boundary
from equipoise.storage.arrays import Array


@dataclass
class Exact:
    """A top-K of scores + shift in whole numbers: the tokens near the boundary one by one, the
    others as loads.

    shift: (E + 1,) int64, the pool last; its value there is what an expert with two allowed loads
        compares its own to.
    """

    scores: Array
    scale: float
    shift: Array
    accepted: Array  # (E,) the load each expert is to have
    tokens: Array  # (n,) rising
    chosen: Array  # (n, E) bool
    excess: Array  # (E + 1,) loads - accepted; the pool has none

    @property
    def float_shift(self) -> Array:
        """The shift of the experts as float64, the pool's being 0."""
        return (self.shift[:-1] - self.shift[-1]) / self.scale

    @property
    def total_excess(self) -> int:
        return int(np.maximum(self.excess, 0).sum())


def scale_of(largest: float) -> float:
    """Units in 1: a power of two, so that scaling a float is exact, with 2^52 units in the largest
    score.
    """
    return 2.0 ** (paths.BITS - math.frexp(largest)[1]) if largest else 1.0


def exact_at(
    region: Region,
    look: Look,
    scale: float,
    bounds: tuple[Array, Array],
    reach: float,
    before: Exact | None = None,
) -> Exact:
    """The exact state at the shift of this look, with the tokens up to `reach` from their boundary
    one by one.

    Tokens that `before`, at the same shift, has one by one keep what they have there.
    """
    near = np.flatnonzero(look.seen.margin <= reach + rounding(region, look.shift))
    tokens = near if not len(region.tokens) else region.tokens[near]
    others = look.loads.copy()
    if len(tokens):
        others -= boundary(region.scores, look.shift, region.top_k, tokens).loads
    if before is None:
        shift, accepted = _with_pool(
            np.rint(look.shift * scale).astype(np.int64), bounds, int(look.loads.sum())
        )
    else:
        shift, accepted = before.shift, before.accepted
    chosen = np.zeros((len(tokens), len(accepted)), np.bool_)
    fresh = np.ones(len(tokens), np.bool_)
    if before is not None:
        _, here, there = np.intersect1d(
            tokens, before.tokens, assume_unique=True, return_indices=True
        )
        chosen[here] = before.chosen[there]
        fresh[here] = False
    need = accepted - others - chosen.sum(0)
    picked = np.zeros((int(fresh.sum()), len(accepted)), np.bool_)
    paths.choose(region.scores, tokens[fresh], scale, shift, region.top_k, need, picked)
    chosen[fresh] = picked
    return Exact(region.scores, scale, shift, accepted, tokens, chosen, np.append(-need, 0))


def _with_pool(shift: Array, bounds: tuple[Array, Array], total: int) -> tuple[Array, Array]:
    """Which experts take their ceiling, and the pool's shift: experts below it take it, experts
    above their floor.

    Complementary slackness for max(-floor p, -ceil p): p < 0 asks for the ceiling, p > 0 for the
    floor.
    """
    lower, upper = bounds
    free = np.flatnonzero(lower < upper)
    extra = total - int(lower.sum())
    accepted = lower.copy()
    if not len(free):  # the pool has no arcs: let it be where floats will measure from
        return np.append(shift, int(np.median(shift))), accepted
    ranked = free[np.argsort(shift[free], kind="stable")]
    accepted[ranked[:extra]] += 1
    pool = shift[ranked[max(extra - 1, 0)]]
    return np.append(shift, pool), accepted


def finish(
    whole: Region,
    region: Region,
    look: Look,
    scale: float,
    bounds: tuple[Array, Array],
    first: Exact,
) -> tuple[Exact, int]:
    """Chains of moves until every load is right. Also: how many tokens were looked at on the way."""
    read = 0
    state = first
    reach = _first_reach(look.seen.margin, 64 * len(first.accepted) + 8 * state.total_excess)
    while state.total_excess:
        if not _covers(region, look, reach):
            region = whole
            look = whole.look(look.shift)
            read += len(whole)
        state = exact_at(region, look, scale, bounds, reach, state)
        if _augment(state, bounds, reach) == paths.DONE:
            break
        reach = max(4 * reach, 1e-6 * whole.largest)
        region = region if region.holds(state.float_shift) else whole
        look = region.look(state.float_shift)
        read += len(region)
    return state, read


def _augment(state: Exact, bounds: tuple[Array, Array], reach: float) -> int:
    while True:
        outcome = paths.augment(
            state.scores, state.tokens, state.scale, state.shift, state.chosen, state.accepted, *bounds, state.excess,
            _in_units(reach, state.scale),
        )  # fmt: skip
        if outcome != paths.AGAIN:
            return int(outcome)


def _first_reach(margin: Array, wanted: int) -> float:
    """The margin that so many tokens have at most, but no more than an eighth of all."""
    place = min(wanted, len(margin) // 8)
    return float(np.partition(margin, place)[place])


def _in_units(reach: float, scale: float) -> int:
    return int(min(reach * scale, 2.0**60))


def _covers(region: Region, look: Look, reach: float) -> bool:
    """Whether every token with a margin up to the reach is among the region's."""
    return reach + 2 * rounding(region, look.shift) < region.left(look.shift) or not np.isfinite(
        region.radius
    )


def rounding(region: Region, shift: Array) -> float:
    """How far a margin told by floats may be from the true one: shift and sums are rounded to the
    scores' type.
    """
    size = region.largest + float(np.abs(shift).max())
    return 4 * float(np.finfo(region.scores.dtype).eps) * size
