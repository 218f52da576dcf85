"""The last tokens, exactly: cheapest chains of moves, in whole numbers.

Given a shift and an assignment that is a top-K of scores + shift, but with some experts over and
some under their load. Moving token i from expert k to l costs
(scores_ik + p_k) - (scores_il + p_l) >= 0. An arc k -> l is the cheapest such move. The cheapest
chain of arcs from an expert with too many to one with too few is taken (a shortest path on a graph
of E nodes). Raising p by the distances, cut off at the chain's length, keeps every move's cost at 0
or above and makes the chain's 0: the assignment stays a top-K. When loads are right, it is optimal
and the shift proves it (complementary slackness).

Speed: what orders the moves of one arc is scores_ik - scores_il, which no shift changes: one heap
per arc, never rebuilt. Only moves that cost at most `reach` under the first shift are kept. A shift
that has since changed by s (max - min) has made a move left out cost at least reach - s; while
chains are shorter than that they are the shortest of all. Else: `WIDER`.

Floor and ceiling: one more node, the pool, with shift 0. An expert below its ceiling may keep one
more token (arc to the pool), one above its floor may give one up (arc from it).

Devices: where a load is that of several experts, arcs among them cost nothing and move nothing.
Their shifts, equal at first, then stay equal: each is as far as the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.optimum.shortest_paths import nearest_sink
from equipoise.optimum.whole_numbers import UNREACHABLE, exact_kernel, in_units
from equipoise.storage.arrays import Array

DONE, WIDER, AGAIN = 0, 1, 2
"""how `move_along_chains` ended"""


MOVE_BYTES = 20
"""of a move in storage: its key, and three links of four bytes"""


class Moves(NamedTuple):
    """Pairing heaps of moves, one for each arc, in common storage; and the key of the cheapest move
    of each arc, for the search of shortest paths.
    """

    key: Array
    """scores_ik - scores_il"""
    mover: Array
    """the row of the token"""
    child: Array
    sibling: Array
    used: Array
    """(1,) how much of the storage"""
    top: Array
    """(E, E) the cheapest move of each arc, or -1"""
    cheapest: Array
    """(E + 1, E + 1) its key; the pool is last"""


@exact_kernel
def _join_heaps(moves: Moves, a: int, b: int) -> int:
    """Join two heaps."""
    if moves.key[b] < moves.key[a]:
        a, b = b, a
    moves.sibling[b] = moves.child[a]
    moves.child[a] = b
    return a


@exact_kernel
def _push_move(moves: Moves, k: int, l: int, key: int, row: int) -> None:
    """Add the move of this row's token to the arc k -> l."""
    new = moves.used[0]
    moves.used[0] += 1
    moves.key[new], moves.mover[new], moves.child[new], moves.sibling[new] = key, row, -1, -1
    top = moves.top[k, l]
    moves.top[k, l] = new if top < 0 else _join_heaps(moves, top, new)
    moves.cheapest[k, l] = min(moves.cheapest[k, l], key)


@exact_kernel
def _without_top(moves: Moves, top: int) -> int:
    """The heap without its least move: join its children in pairs, then the pairs."""
    child, sibling = moves.child, moves.sibling
    pairs = -1
    left = child[top]
    while left >= 0:
        right = sibling[left]
        if right < 0:
            sibling[left] = pairs
            pairs = left
            break
        following = sibling[right]
        joined = _join_heaps(moves, left, right)
        sibling[joined] = pairs
        pairs = joined
        left = following
    heap = -1
    while pairs >= 0:
        following = sibling[pairs]
        sibling[pairs] = -1
        heap = pairs if heap < 0 else _join_heaps(moves, heap, pairs)
        pairs = following
    return heap


@exact_kernel
def _shift_row(row: Array, scale: float, shift: Array, shifted: Array) -> None:
    """One token's shifted scores in units."""
    for k in range(len(row)):
        shifted[k] = in_units(row[k], scale) + shift[k]


@exact_kernel
def _find_movable(
    shifted: Array, chosen: Array, reach: int, inside: Array, outside: Array
) -> tuple[int, int]:
    """The experts that take part in a token's moves of at most `reach`: those it may leave into
    `inside`, those it may go to into `outside`; and how many there are of each.
    """
    worst_in, best_out = UNREACHABLE, -UNREACHABLE
    for k in range(len(shifted)):
        if chosen[k]:
            worst_in = min(worst_in, shifted[k])
        else:
            best_out = max(best_out, shifted[k])
    leaving, joining = 0, 0
    for k in range(len(shifted)):
        if chosen[k]:
            if shifted[k] - best_out <= reach:
                inside[leaving] = k
                leaving += 1
        elif worst_in - shifted[k] <= reach:
            outside[joining] = k
            joining += 1
    return leaving, joining


@exact_kernel
def _count_moves(
    scores: Array, tokens: Array, scale: float, shift: Array, chosen: Array, reach: int
) -> int:
    E = scores.shape[1]
    count = 0
    shifted, inside, outside = np.empty(E, np.int64), np.empty(E, np.int64), np.empty(E, np.int64)
    for row in range(len(tokens)):
        _shift_row(scores[tokens[row]], scale, shift, shifted)
        leaving, joining = _find_movable(shifted, chosen[row], reach, inside, outside)
        for k in inside[:leaving]:
            for l in outside[:joining]:
                count += shifted[k] - shifted[l] <= reach
    return count


@exact_kernel
def _push_all_moves(
    moves: Moves,
    scores: Array,
    tokens: Array,
    scale: float,
    shift: Array,
    chosen: Array,
    reach: int,
    place: Array,
) -> None:
    """Every move between devices that costs at most `reach`."""
    E = scores.shape[1]
    shifted, inside, outside = np.empty(E, np.int64), np.empty(E, np.int64), np.empty(E, np.int64)
    for row in range(len(tokens)):
        _shift_row(scores[tokens[row]], scale, shift, shifted)
        leaving, joining = _find_movable(shifted, chosen[row], reach, inside, outside)
        for k in inside[:leaving]:
            for l in outside[:joining]:
                cost = shifted[k] - shifted[l]
                if cost <= reach and place[k] != place[l]:
                    _push_move(moves, k, l, cost - shift[k] + shift[l], row)


@exact_kernel
def _push_after_move(
    moves: Moves,
    shifted: Array,
    chosen: Array,
    row: int,
    k: int,
    l: int,
    first: Array,
    reach: int,
    place: Array,
) -> None:
    """The token of this row has just gone from k to l. Push the moves that this allows: from l to
    any expert, and from any expert back into k. `shifted`: its scores + `first`.
    """
    for m in range(len(shifted)):
        if m == k or not chosen[m]:
            source, sink = l, m
        elif m != l:
            source, sink = m, k
        else:
            continue
        cost = shifted[source] - shifted[sink]
        if cost <= reach and place[source] != place[sink]:
            _push_move(moves, source, sink, cost - first[source] + first[sink], row)


@exact_kernel
def _refresh_arc(moves: Moves, chosen: Array, source: int, sink: int) -> None:
    """The cheapest move of the arc can no longer be made: find the next that can."""
    top = moves.top[source, sink]
    while top >= 0 and not (
        chosen[moves.mover[top], source] and not chosen[moves.mover[top], sink]
    ):
        top = _without_top(moves, top)
    moves.top[source, sink] = top
    moves.cheapest[source, sink] = moves.key[top] if top >= 0 else UNREACHABLE


@exact_kernel
def _refresh_after_move(moves: Moves, chosen: Array, row: int, k: int, l: int) -> None:
    """The token of this row has just gone from k to l, and was perhaps the cheapest of arcs out of
    k or into l.
    """
    # looked up here and not arc by arc: numba counts references at every call with a tuple
    top, mover, mine = moves.top, moves.mover, chosen[row]
    for m in range(len(mine)):
        source, sink = (m, l) if mine[m] else (k, m)
        if top[source, sink] >= 0 and mover[top[source, sink]] == row:
            _refresh_arc(moves, chosen, source, sink)
    _refresh_arc(moves, chosen, k, l)


@exact_kernel
def _open_pool(
    cheapest: Array, d: int, accepted: Array, lower: Array, upper: Array, place: Array
) -> None:
    """Arcs of device d's experts: to the pool below its ceiling, from the pool above its floor."""
    E = len(place)
    for k in range(E):
        if place[k] == d:
            cheapest[k, E] = 0 if accepted[d] < upper[d] else UNREACHABLE
            cheapest[E, k] = 0 if accepted[d] > lower[d] else UNREACHABLE


class SearchInput(NamedTuple):
    """What stays as it is while chains are looked for."""

    scores: Array
    tokens: Array
    """(n,) those that may move"""
    scale: float
    first: Array
    """the shift at the start"""
    reach: int
    """moves that cost more under the first shift are left out"""
    lower: Array
    upper: Array
    """(D,) bounds of the loads"""
    place: Array
    """(E,) the device of each expert"""


@exact_kernel
def _move_token(
    moves: Moves, given: SearchInput, chosen: Array, accepted: Array, k: int, l: int
) -> None:
    """One token goes from k to l; an arc of the pool changes an accepted load by one, one within a
    device nothing.
    """
    lower, upper, place = given.lower, given.upper, given.place
    E = len(place)
    if k == E:
        accepted[place[l]] -= 1
        _open_pool(moves.cheapest, place[l], accepted, lower, upper, place)
        return
    if l == E:
        accepted[place[k]] += 1
        _open_pool(moves.cheapest, place[k], accepted, lower, upper, place)
        return
    if place[k] == place[l]:
        return
    row = moves.mover[moves.top[k, l]]
    chosen[row, k], chosen[row, l] = False, True
    shifted = np.empty(E, np.int64)
    _shift_row(given.scores[given.tokens[row]], given.scale, given.first, shifted)
    _push_after_move(moves, shifted, chosen[row], row, k, l, given.first, given.reach, place)
    _refresh_after_move(moves, chosen, row, k, l)


@exact_kernel
def _chain_is_free(cheapest: Array, shift: Array, before: Array, start: int, end: int) -> bool:
    """Whether every arc of the chain still costs 0."""
    l = end
    while l != start:
        k = before[l]
        if cheapest[k, l] == UNREACHABLE or cheapest[k, l] + shift[k] - shift[l] != 0:
            return False
        l = k
    return True


@exact_kernel
def _all_moves(given: SearchInput, shift: Array, chosen: Array, accepted: Array) -> Moves:
    """Every move within reach, with storage for the moves that others will allow."""
    scores, tokens, scale, place = given.scores, given.tokens, given.scale, given.place
    E = len(place)
    capacity = 2 * _count_moves(scores, tokens, scale, shift, chosen, given.reach) + 4 * E * E
    if capacity >= 2**31:
        # more than a link of four bytes can name
        raise MemoryError
    links = np.empty((3, capacity), np.int32)
    top = np.full((E, E), -1, np.int32)
    cheapest = np.full((E + 1, E + 1), UNREACHABLE, np.int64)
    moves = Moves(
        np.empty(capacity, np.int64),
        links[0],
        links[1],
        links[2],
        np.zeros(1, np.int64),
        top,
        cheapest,
    )
    _push_all_moves(moves, scores, tokens, scale, shift, chosen, given.reach, place)
    for k in range(E):
        for l in range(E):
            if k != l and place[k] == place[l]:
                cheapest[k, l] = 0
    for d in range(len(accepted)):
        _open_pool(cheapest, d, accepted, given.lower, given.upper, place)
    return moves


@exact_kernel
def move_along_chains(
    scores: Array,
    tokens: Array,
    scale: float,
    shift: Array,
    chosen: Array,
    accepted: Array,
    lower: Array,
    upper: Array,
    place: Array,
    excess: Array,
    reach: int,
) -> int:
    """Move tokens along cheapest chains until no expert has too many. All arrays but the scores are
    changed in place.

    tokens: (n,) those that may move; chosen: (n, E) bool. shift, excess: (E + 1,), the pool last.
    accepted: (D,) the load each device is to have, between lower and upper; place: (E,) the
    device of each expert, arange(E) where experts have loads of their own.

    Returns DONE; WIDER if `reach` was too short to continue; AGAIN if storage is full: call again,
    and new storage is allocated.
    """
    E = scores.shape[1]
    given = SearchInput(scores, tokens, scale, shift.copy(), reach, lower, upper, place)
    moves = _all_moves(given, shift, chosen, accepted)
    distance, before = np.empty(E + 1, np.int64), np.empty(E + 1, np.int64)
    settled = np.empty(E + 1, np.int64)
    while excess.max() > 0:
        end = nearest_sink(moves.cheapest, shift, excess, distance, before, settled)
        changed = shift - given.first
        if end < 0 or distance[end] > reach - (changed.max() - changed.min()):
            return WIDER
        length = distance[end]
        for v in range(E + 1):
            # distances cut off at the length, less the length
            shift[v] += min(distance[v] - length, 0)
        start = end
        while before[start] >= 0:
            start = before[start]
        # the chain costs 0 now: use it for as many tokens as it lasts
        while (
            excess[start] > 0
            and excess[end] < 0
            and _chain_is_free(moves.cheapest, shift, before, start, end)
        ):
            if moves.used[0] + E * E > len(moves.key):
                return AGAIN
            excess[start] -= 1
            excess[end] += 1
            l = end
            while l != start:
                _move_token(moves, given, chosen, accepted, before[l], l)
                l = before[l]
    return DONE
