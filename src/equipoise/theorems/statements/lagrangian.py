"""Statements 1 to 6: what one update does to the Lagrangian, and which tokens it moves.

All are about fixed scores. Margins of 1, 2, 4 and 6 are in units of score (the objective's), of 3
too, of 5 in signs.
"""

from __future__ import annotations

import numpy as np

from equipoise.optimum.loop import Array
from equipoise.theorems.evidence.program import (
    Source,
    Step,
    deepseek_rate,
    require_dual_update,
    require_no_ties,
    steps_of,
)
from equipoise.theorems.verdict import Verdict, judge, require


def change_in_lagrangian(source: Source) -> Verdict:
    """1. L(x', p') - L(x, p) = sum_i b(i) - sum_k eps_k (A_k - L)^2, for any step sizes.

    The margin is the tolerance (1e-10 of the objective, plus what rounding the recorded shifts may
    do) less the error.
    """
    return judge(
        "1 change in Lagrangian", _change, steps_of(source), "tolerance less the identity's error"
    )


def _change(step: Step) -> float:
    require_dual_update(step)
    predicted = step.benefit.sum() - (step.step_size * step.gap**2).sum()
    return float(step.tolerance - abs(step.change - predicted))


def switching_benefit(source: Source) -> Verdict:
    """2. b(i) is the sum over entering-exiting pairs of their difference in shifted score; and b(i)
    >= 0.

    The margin is the least of b(i) and of the tolerance less the error, over tokens; minus the
    number of experts too many or too few where a token's entering and exiting experts cannot be
    paired.
    """
    return judge(
        "2 switching benefit",
        _benefit,
        steps_of(source),
        "the least benefit, and tolerance less error",
    )


def _benefit(step: Step) -> float:
    require_no_ties(step)
    rows, worth = step.changed, step.shifted_after[step.changed]
    added, removed = step.after[rows] & ~step.before[rows], step.before[rows] & ~step.after[rows]
    unpaired = np.abs(added.sum(1) - removed.sum(1)).max(initial=0)
    if unpaired:
        return -float(unpaired)
    pairs = np.array([(w[a] - w[r]).sum() for w, a, r in zip(worth, added, removed)])
    small = step.scores.shape[1] * (step.tiny + 1e-15)
    return float(
        min(
            step.benefit.min(initial=np.inf) + small,
            small - np.abs(pairs - step.benefit).max(initial=0.0),
        )
    )


def pairwise_bounds(source: Source) -> Verdict:
    """3. For every entering k+ and exiting k- of a token, with differences of shifted score (+
    minus -):

        0 < new difference < u (s+ - s-) <= 2u,     -2u < old difference < 0,     0 < b(i) < 2u changes(i).

    (errata 2: the last of the first chain is <=.) The margin is the least slack of all of them.
    """
    return judge("3 pairwise bounds", _pairwise, steps_of(source), "least slack, in score")


def _pairwise(step: Step) -> float:
    u = deepseek_rate(step)
    require_no_ties(step)
    rows = step.changed
    require(rows.size > 0, "no token changed its choice")
    added, removed = step.after[rows] & ~step.before[rows], step.before[rows] & ~step.after[rows]
    old, new = step.shifted[rows], step.shifted_after[rows]
    slacks = (
        _least(new, added) - _most(new, removed),  # 0 < new difference
        _least(new - u * step.sign, removed) - _most(new - u * step.sign, added),  # < u (s+ - s-)
        2 * u - (_most(new, added) - _least(new, removed)),
        2 * u + (_least(old, added) - _most(old, removed)),  # -2u < old difference
        _least(old, removed) - _most(old, added),  # < 0
        step.benefit,
        2 * u * added.sum(1) - step.benefit,
    )
    return float(min(each.min() for each in slacks) + 2 * step.tiny)


def deepseek_lagrangian(source: Source) -> Verdict:
    """4. With DeepSeek's step the change is sum_i b(i) - u sum_k |A_k - L|, at most u (2 changes -
    sum_k |A_k - L|).

    The margin is the lesser of the bound's slack and of the tolerance less the identity's error.
    """
    return judge(
        "4 Lagrangian, DeepSeek step", _deepseek, steps_of(source), "least slack, in score"
    )


def _deepseek(step: Step) -> float:
    u = deepseek_rate(step)
    require_no_ties(step)
    off = u * np.abs(step.gap).sum()
    changes = (step.after & ~step.before).sum()
    error = abs(step.change - (step.benefit.sum() - off))
    return float(min(step.tolerance - error, 2 * u * changes - off - step.change + step.tolerance))


def assignment_changes(source: Source) -> Verdict:
    """5. Entering experts are strictly less loaded than exiting ones: sign(L - A_k+) > sign(L -
    A_k-).

    The margin is the least difference of signs less 1: 0 or 1 where it holds. It holds however
    small the steps are.
    """
    return judge(
        "5 assignment changes", _direction, steps_of(source), "difference of signs, less 1"
    )


def _direction(step: Step) -> float:
    deepseek_rate(step)
    require_no_ties(step)
    rows = step.changed
    require(rows.size > 0, "no token changed its choice")
    sign = np.broadcast_to(step.sign, (rows.size, step.sign.size))
    added, removed = step.after[rows] & ~step.before[rows], step.before[rows] & ~step.after[rows]
    return float((_least(sign, added) - _most(sign, removed)).min() - 1)


def monotonicity(source: Source) -> Verdict:
    """6. If no expert changes between over-, under- and exactly loaded, the Lagrangian does not
    grow.

    Checked in the sharper forms of errata 8: change <= -2u max(over, under) for integer L, and <=
    -u sum |A' - L|. The margin is the least slack. Loads near balance cross L at almost every step,
    so at scale this seldom applies: see the sandwich.
    """
    return judge("6 monotonicity", _monotone, steps_of(source), "least slack, in score")


def _monotone(step: Step) -> float:
    u = deepseek_rate(step)
    require_no_ties(step)
    sign_after = np.sign(step.target - step.loads_after)
    require(
        bool((sign_after == step.sign).all()),
        "experts changed between overloaded, balanced and underloaded",
    )
    bounds = [-u * np.abs(step.loads_after - step.target).sum(), 0.0]
    if (step.target == np.round(step.target)).all():
        bounds.append(-2 * u * max((step.sign < 0).sum(), (step.sign > 0).sum()))
    return float(min(bounds) - step.change + step.tolerance)


def sandwich(source: Source) -> Verdict:
    """6, free of assumptions, ties allowed (errata 8): -u sum |A - L| <= change <= u sum_k s_k
    (A'_k - L).

    The margin is the least slack of the two. The right side is what one step can gain at most,
    whatever the scores.
    """
    return judge(
        "6 sandwich, free of assumptions", _sandwich, steps_of(source), "least slack, in score"
    )


def _sandwich(step: Step) -> float:
    u = deepseek_rate(step)
    low = -u * np.abs(step.gap).sum()
    high = u * (step.sign * (step.loads_after - step.target)).sum()
    return float(min(step.change - low, high - step.change) + step.tolerance)


def _least(values: Array, where: np.ndarray) -> Array:
    return np.where(where, values, np.inf).min(1)


def _most(values: Array, where: np.ndarray) -> Array:
    return np.where(where, values, -np.inf).max(1)
