"""From loads that are nearly right to loads that are: which tokens to look at, and how far.

Only tokens near their boundary can move cheaply, so chains are sought among those within a reach;
where that proves too short it is widened. For all other tokens floats are enough: their margin
exceeds what rounding can do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.optimum.bounds import LoadBounds, first_experts
from equipoise.optimum.chains import AGAIN, DONE, MOVE_BYTES, move_along_chains
from equipoise.optimum.newton import Look, Region
from equipoise.optimum.topk import boundary_under
from equipoise.optimum.whole_numbers import choose_by_need
from equipoise.storage.arrays import Array


@dataclass
class ExactState:
    """A top-K of scores + shift in whole numbers: the tokens near the boundary one by one, the
    others as loads.

    Made by `exact_state`, changed in place by `move_along_chains`.
    """

    scores: Array
    scale: float
    """units in 1"""
    shift: Array
    """(E + 1,) int64, the pool last: an expert with two allowed loads compares its shift to that"""
    accepted: Array
    """(D,) the load each device is to have: each expert, where it is alone"""
    tokens: Array
    """(n,) rising"""
    chosen: Array
    """(n, E) bool"""
    excess: Array
    """(E + 1,) loads - accepted, a device's at its first expert; the pool has none"""

    @property
    def float_shift(self) -> Array:
        """The shift of the experts as float64, the pool's being 0."""
        return (self.shift[:-1] - self.shift[-1]) / self.scale

    @property
    def total_excess(self) -> int:
        return int(np.maximum(self.excess, 0).sum())


def exact_state(
    region: Region,
    look: Look,
    scale: float,
    bounds: LoadBounds,
    reach: float,
    before: ExactState | None = None,
) -> ExactState:
    """The exact state at the look's shift, with tokens up to `reach` from their boundary apart.

    Tokens that `before`, at the same shift, has one by one keep what they have there.
    """
    near = np.flatnonzero(look.seen.margin <= reach + margin_rounding(region, look.shift))
    tokens = near if not len(region.tokens) else region.tokens[near]
    others = look.loads.copy()
    if len(tokens):
        others -= boundary_under(region.scores, look.shift, region.top_k, tokens).loads
    if before is None:
        shift, accepted = _with_pool(
            np.rint(look.shift * scale).astype(np.int64), bounds, int(look.loads.sum())
        )
    else:
        shift, accepted = before.shift, before.accepted
    chosen = np.zeros((len(tokens), len(bounds.place)), np.bool_)
    fresh = np.ones(len(tokens), np.bool_)
    if before is not None:
        _, here, there = np.intersect1d(
            tokens, before.tokens, assume_unique=True, return_indices=True
        )
        chosen[here] = before.chosen[there]
        fresh[here] = False
    need = accepted - bounds.held(others + chosen.sum(0))
    picked = np.zeros((int(fresh.sum()), len(bounds.place)), np.bool_)
    choose_by_need(
        region.scores, tokens[fresh], scale, shift, region.top_k, need, bounds.place, picked
    )
    chosen[fresh] = picked
    excess = np.zeros(len(shift), np.int64)
    excess[first_experts(bounds.place)] = -need
    return ExactState(region.scores, scale, shift, accepted, tokens, chosen, excess)


def _with_pool(shift: Array, bounds: LoadBounds, total: int) -> tuple[Array, Array]:
    """Which experts (or devices) take their ceiling, and the pool's shift: experts below it take
    it, experts above their floor.

    Complementary slackness for max(-floor p, -ceil p): p < 0 asks for the ceiling, p > 0 for the
    floor.
    """
    lower, upper, _ = bounds
    free = np.flatnonzero(lower < upper)
    extra = total - int(lower.sum())
    accepted = lower.copy()
    if not len(free):
        # the pool has no arcs: put it where `float_shift` measures from
        return np.append(shift, int(np.median(shift))), accepted
    price = bounds.price(shift)
    ranked = free[np.argsort(price[free], kind="stable")]
    accepted[ranked[:extra]] += 1
    pool = price[ranked[max(extra - 1, 0)]]
    return np.append(shift, pool), accepted


def finish_exactly(
    whole: Region,
    region: Region,
    look: Look,
    scale: float,
    bounds: LoadBounds,
    first: ExactState,
) -> tuple[ExactState, int]:
    """Chains of moves until every load is right; and how many tokens were looked at for that."""
    read = 0
    state = first
    reach = _first_reach(look.seen.margin, 64 * len(bounds.place) + 8 * state.total_excess)
    while state.total_excess:
        if not _region_covers(region, look, reach):
            region = whole
            look = whole.look(look.shift)
            read += len(whole)
        state = exact_state(region, look, scale, bounds, reach, state)
        if _move_all_excess(state, bounds, reach) == DONE:
            break
        region = region if region.holds(state.float_shift) else whole
        look = region.look(state.float_shift)
        read += len(region)
        reach = _wider_reach(reach, look.seen.margin, 4 * len(state.tokens), whole.largest)
    return state, read


def _move_all_excess(state: ExactState, bounds: LoadBounds, reach: float) -> int:
    """DONE, or WIDER if the reach is too short."""
    while True:
        try:
            outcome = move_along_chains(
                state.scores,
                state.tokens,
                state.scale,
                state.shift,
                state.chosen,
                state.accepted,
                *bounds,
                state.excess,
                _reach_in_units(reach, state.scale),
            )
        except MemoryError:
            raise _too_many_moves(state) from None
        if outcome != AGAIN:
            return int(outcome)


def _too_many_moves(state: ExactState) -> MemoryError:
    tokens, E = state.chosen.shape
    top_k = int(state.chosen[0].sum())
    moves = tokens * top_k * (E - top_k)
    return MemoryError(
        f"no memory for the moves of {tokens:,} tokens, each of {top_k} experts to {E - top_k} "
        f"others: up to {moves:,} moves, {2 * MOVE_BYTES * moves / 1e9:.1f} GB. Their scores are "
        "so "
        "nearly equal that all of them matter: solve fewer tokens at a time, or round the scores"
    )


def chain_seconds(tokens: int, num_experts: int) -> float:
    """About how long chains for so many tokens take, at most: each may pass every expert, and each
    move is compared with those of every other. (23 ns a comparison, measured on rank-1 scores.)
    """
    return 23e-9 * tokens * num_experts**2


def _first_reach(margin: Array, wanted: int) -> float:
    """The margin that so many tokens have at most, but no more than an eighth of all."""
    place = min(wanted, len(margin) // 8)
    return float(np.partition(margin, place)[place])


def _wider_reach(reach: float, margin: Array, wanted: int, largest: float) -> float:
    """At least four times as far, and so far that about `wanted` tokens are near, or half of all.

    The margins say what is far: scores may differ by a trillionth of their size, and a step in
    units of their size would make every token's every move near. So would the margins of the last
    few tokens, which may be many times the others'. Where all margins are 0 they say nothing.
    """
    last = min(wanted, len(margin) - 1)
    half = min(wanted, len(margin) // 2)
    ranked = np.partition(margin, (half, last))
    return max(4 * reach, float(ranked[half] or ranked[last])) or 1e-6 * largest


def _reach_in_units(reach: float, scale: float) -> int:
    return int(min(reach * scale, 2.0**60))


def _region_covers(region: Region, look: Look, reach: float) -> bool:
    """Whether every token with a margin up to the reach is among the region's."""
    if not np.isfinite(region.radius):
        return True
    return reach + 2 * margin_rounding(region, look.shift) < region.left(look.shift)


def margin_rounding(region: Region, shift: Array) -> float:
    """How far a margin computed in floats may be from the true one: shift and sums are rounded to
    the scores' type.
    """
    size = region.largest + float(np.abs(shift).max())
    return 4 * float(np.finfo(region.scores.dtype).eps) * size
