"""The paper's primal-dual loop on fixed scores (eqs. 7 and 8), and its fast twin.

    x^n = top-K of scores + p^n         A^n = column sums of x^n         p^(n+1) = p^n + rule(n, L - A^n)

`iterate` is that, line by line. `iterate_fast` gives the same path to the last bit without touching
T * E numbers at each step. It remembers an anchor: a shift under which every token's choice is
known. If the shift has since moved by d, no difference of two experts has changed by more than max
d - min d, the reach. So

    a token whose margin (K-th minus (K+1)-th shifted score) is greater than the reach chooses as it
    did at the anchor; of the others, an expert that led the best one left out by more than the
    reach is still chosen, and one that trailed the worst chosen by more is still left out.

What remains are a few tokens, a prefix of them sorted by margin, with a few experts each, the
contenders, for a few seats. They are listed once for all reaches up to a horizon; beyond it, or
when listing them anew pays, a new anchor is taken.

Ties go to the expert with the lowest index, in both. T tokens, E experts, K choices, N steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Rule = Callable[[int, Array], Array]
"""(n = 1, 2, ..., target load - load) -> what to add to the shift"""


class FixedScores(NamedTuple):
    """A batch that never changes: what the deterministic statements are about."""

    scores: Array
    """(T, E)"""
    top_k: int


class Path(NamedTuple):
    """Where the loop went."""

    shifts: Array
    """(N+1, E): p^0 ... p^N"""
    loads: NDArray[np.int64]
    """(N+1, E): A^0 ... A^N, each under the shift of the same row"""


def deepseek(u: float) -> Rule:
    """u sign(L - A): the paper's eqs. 3 and 10."""
    return lambda n, gap: u * np.sign(gap)


def inverse(u: float) -> Rule:
    """(u / n) (L - A), counts."""
    return lambda n, gap: u / n * gap


def inverse_sqrt(u: float) -> Rule:
    """(u / sqrt n) (L - A), counts."""
    return lambda n, gap: u / np.sqrt(n) * gap


def choose(shifted: Array, top_k: int) -> NDArray[np.bool_]:
    """(T, E) -> which experts each token takes: its K largest, of equal ones the first."""
    least = np.partition(shifted, -top_k, axis=1)[:, -top_k, None]
    chosen, equal = shifted > least, shifted == least
    room = top_k - chosen.sum(1, keepdims=True)
    return chosen | (equal & (equal.cumsum(1) <= room))


def iterate(
    problem: FixedScores, rule: Rule, steps: int, *, shift: ArrayLike | None = None
) -> Path:
    """The loop, to be read. `problem` is anything with scores (T, E) and top_k; the shift starts at
    0 unless given.
    """
    scores, top_k, path = _start(problem, steps, shift)
    target = top_k * len(scores) / scores.shape[1]
    for n in range(steps + 1):
        path.loads[n] = choose(scores + path.shifts[n], top_k).sum(0)  # the primal update
        if n < steps:
            path.shifts[n + 1] = path.shifts[n] + rule(
                n + 1, target - path.loads[n]
            )  # the dual update
    return path


def iterate_fast(
    problem: FixedScores, rule: Rule, steps: int, *, shift: ArrayLike | None = None
) -> Path:
    """`iterate`, the same to the last bit, at a cost that follows the tokens near their boundary."""
    scores, top_k, path = _start(problem, steps, shift)
    target = top_k * len(scores) / scores.shape[1]
    anchor = _Anchor(scores, top_k, path.shifts[0])
    for n in range(steps + 1):
        path.loads[n] = anchor.loads_at(path.shifts[n])
        if n < steps:
            path.shifts[n + 1] = path.shifts[n] + rule(n + 1, target - path.loads[n])
    return path


def _start(problem: FixedScores, steps: int, shift: ArrayLike | None) -> tuple[Array, int, Path]:
    scores = np.ascontiguousarray(problem.scores, np.float64)
    if scores.ndim != 2 or not 1 <= problem.top_k <= scores.shape[1]:
        raise ValueError(
            f"top_k = {problem.top_k} of scores of shape {scores.shape}: they are (T, E), and 1 "
            "<= top_k <= E"
        )
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    shape = (steps + 1, scores.shape[1])
    path = Path(np.empty(shape), np.empty(shape, np.int64))
    path.shifts[0] = 0.0 if shift is None else shift
    return scores, problem.top_k, path


class _Anchor:
    """Every token's choice under one shift, and who may change it within a horizon."""

    def __init__(self, scores: Array, top_k: int, shift: Array) -> None:
        self.scores, self.top_k, self.largest = (
            scores,
            top_k,
            float(np.abs(scores).max(initial=0.0)),
        )
        self._drop(shift, np.full(len(scores), -np.inf))

    def loads_at(self, shift: Array) -> NDArray[np.int64]:
        moved = shift - self.shift
        # shifted scores are rounded: half an ulp each, here and at the anchor
        rounding = (
            4
            * np.finfo(np.float64).eps
            * (self.largest + np.abs(shift).max() + np.abs(self.shift).max())
        )
        reach = moved.max() - moved.min() + rounding
        near = int(np.searchsorted(self.margins, reach, side="right"))
        self.work += int(self.starts[min(near, self.starts.size - 1)])
        if reach > self.horizon or self.work > self.scores.size:
            # K + 1 experts were at least at the (K+1)-th, and none has lost more than the least
            # move: lower ones cannot count
            self._drop(shift, self.edges[:, 1] + moved.min() - rounding)
            return self.loads.copy()
        return _recount(
            shift, near, self.starts, self.seats, self.experts, self.values, self.chosen, self.loads
        )

    def _drop(self, shift: Array, floor: Array) -> None:
        self.shift, self.work = shift.copy(), 0
        self.edges, self.loads = _take(self.scores, shift, self.top_k, floor)
        margins = self.edges[:, 0] - self.edges[:, 1]
        # half the tokens: a horizon far enough for many steps, and near enough for few contenders
        self.horizon = float(np.median(margins)) if self.top_k < self.scores.shape[1] else np.inf
        order = np.flatnonzero(margins <= self.horizon)
        order = order[np.argsort(margins[order], kind="stable")]
        self.margins = margins[order]
        self.starts, self.seats, self.experts, self.values, self.chosen = _contenders(
            self.scores, shift, self.top_k, order, self.edges, self.horizon
        )


@njit(cache=True)
def _best(
    row: Array, shift: Array, floor: float, experts: NDArray[np.int64], values: Array
) -> None:
    """The len(values) largest of row + shift, none below floor, largest first. An equal one never
    passes an earlier.
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
def _take(scores: Array, shift: Array, top_k: int, floor: Array) -> tuple[Array, NDArray[np.int64]]:
    """(T, 2) every token's K-th and (K+1)-th shifted score (-inf where there is none), and the
    loads (E).
    """
    T, E = scores.shape
    edges, loads = np.full((T, 2), -np.inf), np.zeros(E, np.int64)
    kept = min(top_k + 1, E)
    experts, values = np.empty(kept, np.int64), np.empty(kept)
    for i in range(T):
        _best(scores[i], shift, floor[i], experts, values)
        for j in range(top_k):
            loads[experts[j]] += 1
        edges[i, : kept - top_k + 1] = values[top_k - 1 :]
    return edges, loads


@njit(cache=True)
def _contenders(
    scores: Array, shift: Array, top_k: int, rows: NDArray[np.int64], edges: Array, horizon: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Array, NDArray[np.bool_]]:
    """For each of `rows`, those within the horizon of its threshold: where its list starts, how
    many seats they contend for, and of each contender its index, score, and whether it has a seat
    now. Of equal ones the first has it, as everywhere.
    """
    starts, seats = np.zeros(rows.size + 1, np.int64), np.zeros(rows.size, np.int64)
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
        ties = top_k - above  # seats left for those that equal the K-th
        for k in range(row.size):
            value = row[k] + shift[k]
            seated = value > worst
            if value == worst and ties > 0:
                seated = True
                ties -= 1
            if (seated and value - best <= horizon) or (not seated and worst - value <= horizon):
                experts[at], values[at], chosen[at] = k, row[k], seated
                seats[n] += seated
                at += 1
        starts[n + 1] = at
    return starts, seats, experts[:at].copy(), values[:at].copy(), chosen[:at].copy()


@njit(cache=True)
def _recount(
    shift: Array,
    near: int,
    starts: NDArray[np.int64],
    seats: NDArray[np.int64],
    experts: NDArray[np.int64],
    scores: Array,
    chosen: NDArray[np.bool_],
    loads: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Loads when only the contenders of the first `near` tokens choose again."""
    counted = loads.copy()
    best, values = np.empty(shift.size, np.int64), np.empty(shift.size)
    for n in range(near):
        start, stop = starts[n], starts[n + 1]
        kept = 0
        for c in range(start, stop):
            value, at = scores[c] + shift[experts[c]], kept
            if chosen[c]:
                counted[experts[c]] -= 1
            if kept < seats[n]:
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
