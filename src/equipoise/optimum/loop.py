"""The paper's primal-dual loop on fixed scores (eqs. 7 and 8), and its fast twin.

    x^n = top-K of scores + p^n
    A^n = column sums of x^n
    p^(n+1) = p^n + rule(n, L - A^n)

`iterate` is that, line by line. `iterate_fast` gives the same path to the last bit without touching
T * E numbers at each step. It remembers an anchor: a shift under which every token's choice is
known. If the shift has since moved by d, no difference of two experts has changed by more than
max d - min d, the reach. So

    a token whose margin (K-th minus (K+1)-th shifted score) is greater than the reach chooses as it
    did at the anchor; of the others, an expert that led the best one left out by more than the
    reach is still chosen, and one that trailed the worst chosen by more is still left out.

What remains are a few tokens, a prefix of them sorted by margin, with a few experts each, the
contenders, for a few places. They are listed once for all reaches up to a horizon; beyond it, or
when it costs less to list them again, a new anchor is taken.

Ties go to the expert with the lowest index, in both. T tokens, E experts, K choices, N steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from equipoise.optimum.arrays import Bools, Floats, Ints
from equipoise.storage.renamed import old_names

UpdateRule = Callable[[int, Floats], Floats]
"""(n = 1, 2, ..., target load - load) -> what to add to the shift"""

__getattr__ = old_names(
    __name__,
    {
        "deepseek": "deepseek_rule",
        "inverse": "inverse_rule",
        "inverse_sqrt": "inverse_sqrt_rule",
        "choose": "choose_top_k",
        "Path": "LoopPath",
    },
)


class FixedScores(NamedTuple):
    """A batch that never changes: what the deterministic statements are about."""

    scores: Floats
    """(T, E)"""
    top_k: int


class LoopPath(NamedTuple):
    """Where the loop went."""

    shifts: Floats
    """(N+1, E): p^0 ... p^N"""
    loads: Ints
    """(N+1, E): A^0 ... A^N, each under the shift of the same row"""


def deepseek_rule(u: float) -> UpdateRule:
    """u sign(L - A): the paper's eqs. 3 and 10."""
    return lambda n, gap: u * np.sign(gap)


def inverse_rule(u: float) -> UpdateRule:
    """(u / n) (L - A), counts."""
    return lambda n, gap: u / n * gap


def inverse_sqrt_rule(u: float) -> UpdateRule:
    """(u / sqrt n) (L - A), counts."""
    return lambda n, gap: u / np.sqrt(n) * gap


def choose_top_k(shifted: Floats, top_k: int) -> Bools:
    """(T, E) -> which experts each token takes: its K largest, of equal ones the first."""
    least = np.partition(shifted, -top_k, axis=1)[:, -top_k, None]
    chosen, equal = shifted > least, shifted == least
    room = top_k - chosen.sum(1, keepdims=True)
    return chosen | (equal & (equal.cumsum(1) <= room))


def iterate(
    problem: FixedScores, rule: UpdateRule, steps: int, *, shift: ArrayLike | None = None
) -> LoopPath:
    """The loop, written to be read. `problem` is anything with scores (T, E) and top_k; the shift
    starts at 0 unless given.
    """
    scores, top_k, path = _prepare_loop(problem, steps, shift)
    target = top_k * len(scores) / scores.shape[1]
    for n in range(steps + 1):
        # the primal update
        path.loads[n] = choose_top_k(scores + path.shifts[n], top_k).sum(0)
        if n < steps:
            # the dual update
            path.shifts[n + 1] = path.shifts[n] + rule(n + 1, target - path.loads[n])
    return path


def iterate_fast(
    problem: FixedScores, rule: UpdateRule, steps: int, *, shift: ArrayLike | None = None
) -> LoopPath:
    """`iterate`, the same to the last bit; its cost follows the tokens near their boundary."""
    scores, top_k, path = _prepare_loop(problem, steps, shift)
    target = top_k * len(scores) / scores.shape[1]
    anchor = _Anchor(scores, top_k, path.shifts[0])
    for n in range(steps + 1):
        path.loads[n] = anchor.loads_at(path.shifts[n])
        if n < steps:
            path.shifts[n + 1] = path.shifts[n] + rule(n + 1, target - path.loads[n])
    return path


def _prepare_loop(
    problem: FixedScores, steps: int, shift: ArrayLike | None
) -> tuple[Floats, int, LoopPath]:
    scores = np.ascontiguousarray(problem.scores, np.float64)
    if scores.ndim != 2 or not 1 <= problem.top_k <= scores.shape[1]:
        raise ValueError(
            f"top_k = {problem.top_k} of scores of shape {scores.shape}: they are (T, E), and 1 "
            "<= top_k <= E"
        )
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    shape = (steps + 1, scores.shape[1])
    path = LoopPath(np.empty(shape), np.empty(shape, np.int64))
    path.shifts[0] = 0.0 if shift is None else shift
    return scores, problem.top_k, path


class _Anchor:
    """Every token's choice under one shift, and the experts that may change it within a horizon."""

    def __init__(self, scores: Floats, top_k: int, shift: Floats) -> None:
        self.scores, self.top_k = scores, top_k
        self.largest = float(np.abs(scores).max(initial=0.0))
        self._move_to(shift, np.full(len(scores), -np.inf))

    def loads_at(self, shift: Floats) -> Ints:
        """(E) under this shift; takes a new anchor there where the old one does not reach."""
        moved = shift - self.shift
        # shifted scores are rounded: half an ulp each, here and at the anchor
        size = self.largest + np.abs(shift).max() + np.abs(self.shift).max()
        rounding = 4 * np.finfo(np.float64).eps * size
        reach = moved.max() - moved.min() + rounding
        near = int(np.searchsorted(self.margins, reach, side="right"))
        self.work += int(self.starts[min(near, self.starts.size - 1)])
        if reach > self.horizon or self.work > self.scores.size:
            # K + 1 experts were at least at the (K+1)-th score, and none has moved by less than
            # the least move: what lies lower than that cannot be among the K + 1 best
            self._move_to(shift, self.edges[:, 1] + moved.min() - rounding)
            return self.loads.copy()
        return _recount_loads(
            shift,
            near,
            self.starts,
            self.places,
            self.experts,
            self.values,
            self.chosen,
            self.loads,
        )

    def _move_to(self, shift: Floats, floor: Floats) -> None:
        """Take the anchor here. No shifted score below floor (T) can be among a token's best."""
        self.shift, self.work = shift.copy(), 0
        self.edges, self.loads = _thresholds_and_loads(self.scores, shift, self.top_k, floor)
        margins = self.edges[:, 0] - self.edges[:, 1]
        # half the tokens: a horizon far enough for many steps, and near enough for few contenders
        self.horizon = float(np.median(margins)) if self.top_k < self.scores.shape[1] else np.inf
        order = np.flatnonzero(margins <= self.horizon)
        order = order[np.argsort(margins[order], kind="stable")]
        self.margins = margins[order]
        self.starts, self.places, self.experts, self.values, self.chosen = _list_contenders(
            self.scores, shift, self.top_k, order, self.edges, self.horizon
        )


@njit(cache=True)
def _largest_shifted(
    row: Floats, shift: Floats, floor: float, experts: Ints, values: Floats
) -> None:
    """The len(values) largest of row + shift, none below floor, largest first. Of equal ones the
    earlier comes first.
    """
    kept = 0
    for k in range(row.size):
        value = row[k] + shift[k]
        if value < floor:
            continue
        if kept == values.size:
            if value <= values[kept - 1]:
                continue
            at = kept - 1
        else:
            at = kept
            kept += 1
        while at > 0 and value > values[at - 1]:
            values[at], experts[at] = values[at - 1], experts[at - 1]
            at -= 1
        values[at], experts[at] = value, k


@njit(cache=True)
def _thresholds_and_loads(
    scores: Floats, shift: Floats, top_k: int, floor: Floats
) -> tuple[Floats, Ints]:
    """(T, 2) each token's K-th and (K+1)-th shifted score (-inf if there is none); loads (E)."""
    T, E = scores.shape
    edges, loads = np.full((T, 2), -np.inf), np.zeros(E, np.int64)
    kept = min(top_k + 1, E)
    experts, values = np.empty(kept, np.int64), np.empty(kept)
    for i in range(T):
        _largest_shifted(scores[i], shift, floor[i], experts, values)
        for j in range(top_k):
            loads[experts[j]] += 1
        edges[i, : kept - top_k + 1] = values[top_k - 1 :]
    return edges, loads


@njit(cache=True)
def _list_contenders(
    scores: Floats, shift: Floats, top_k: int, rows: Ints, edges: Floats, horizon: float
) -> tuple[Ints, Ints, Ints, Floats, Bools]:
    """For each of `rows`, the experts within the horizon of its threshold, in one long list.

    Gives where each row's part starts, how many places its contenders compete for, and of each
    contender its index, its score, and whether it has a place now. Of equal ones the first has it,
    as everywhere.
    """
    starts, places = np.zeros(rows.size + 1, np.int64), np.zeros(rows.size, np.int64)
    room = 1024
    experts, values, chosen = np.empty(room, np.int64), np.empty(room), np.empty(room, np.bool_)
    at = 0
    for n in range(rows.size):
        row, worst, best = scores[rows[n]], edges[rows[n], 0], edges[rows[n], 1]
        if at + row.size > room:
            room = 2 * room + row.size
            experts = np.concatenate((experts, np.empty(room - experts.size, np.int64)))
            values = np.concatenate((values, np.empty(room - values.size)))
            chosen = np.concatenate((chosen, np.empty(room - chosen.size, np.bool_)))
        above = 0
        for k in range(row.size):
            above += row[k] + shift[k] > worst
        # places left for those that equal the K-th
        ties = top_k - above
        for k in range(row.size):
            value = row[k] + shift[k]
            placed = value > worst
            if value == worst and ties > 0:
                placed = True
                ties -= 1
            if (placed and value - best <= horizon) or (not placed and worst - value <= horizon):
                experts[at], values[at], chosen[at] = k, row[k], placed
                places[n] += placed
                at += 1
        starts[n + 1] = at
    return starts, places, experts[:at].copy(), values[:at].copy(), chosen[:at].copy()


@njit(cache=True)
def _recount_loads(
    shift: Floats,
    near: int,
    starts: Ints,
    places: Ints,
    experts: Ints,
    scores: Floats,
    chosen: Bools,
    loads: Ints,
) -> Ints:
    """Loads when only the contenders of the first `near` tokens choose_top_k again."""
    counted = loads.copy()
    best, values = np.empty(shift.size, np.int64), np.empty(shift.size)
    for n in range(near):
        start, stop = starts[n], starts[n + 1]
        kept = 0
        for c in range(start, stop):
            value, at = scores[c] + shift[experts[c]], kept
            if chosen[c]:
                counted[experts[c]] -= 1
            if kept < places[n]:
                kept += 1
            elif value <= values[kept - 1]:
                continue
            else:
                at = kept - 1
            while at > 0 and value > values[at - 1]:
                values[at], best[at] = values[at - 1], best[at - 1]
                at -= 1
            values[at], best[at] = value, experts[c]
        for j in range(kept):
            counted[best[j]] += 1
    return counted
