"""Statements 1 to 6: what one update does to the Lagrangian, and which tokens it moves.

All are about fixed scores. The margin of 1 is 1 less error over tolerance, of 2, 3, 4 and 6 in
units of score (the objective's), of 5 in signs. Steps on which nothing moves are left out: every
statement holds there, and tells nothing.
"""

from __future__ import annotations

import numpy as np

from equipoise.optimum.arrays import Bools, Floats
from equipoise.theorems.evidence.hypotheses import (
    deepseek_rate,
    require_dual_update,
    require_movement,
    require_no_ties,
)
from equipoise.theorems.evidence.runs import STEPS
from equipoise.theorems.evidence.steps import UpdateStep
from equipoise.theorems.registry import statement
from equipoise.theorems.verdict import (
    Slack,
    require_hypothesis,
    slack_of_bound,
    slack_of_identity,
)

NOTHING_SWITCHED = "no token changed its choice"


@statement(1, "change in Lagrangian", evidence=STEPS)
def change_in_lagrangian(step: UpdateStep) -> Slack:
    """1. L(x', p') - L(x, p) = sum_i b(i) - sum_k eps_k (A_k - L)^2, for any step sizes.

    The margin is 1 less error over tolerance: 1e-10 of the objective, plus what rounding the
    recorded shifts may do.
    """
    require_dual_update(step)
    require_movement(step)
    predicted = step.benefit.sum() - (step.step_size * step.gap**2).sum()
    return slack_of_identity(abs(step.change - predicted), step.tolerance)


@statement(2, "switching benefit", evidence=STEPS, meaning="the least benefit, in score")
def switching_benefit(step: UpdateStep) -> float:
    """2. b(i) is the sum over entering-exiting pairs of their difference in shifted score (eq. 13);
    and b(i) >= 0.

    The margin is the least b(i); where the sums differ beyond rounding, minus the difference; where
    a token's entering and exiting experts cannot be paired, minus the experts too many or too few.
    """
    require_no_ties(step)
    require_hypothesis(step.changed.size > 0, NOTHING_SWITCHED)
    added, removed = _entering_and_exiting(step)
    unpaired = np.abs(added.sum(1) - removed.sum(1)).max(initial=0)
    if unpaired:
        return -float(unpaired)
    worth = step.shifted_after[step.changed]
    pairs = np.array([(w[a] - w[r]).sum() for w, a, r in zip(worth, added, removed)])
    small = step.scores.shape[1] * (step.tiny + 1e-15)
    error = np.abs(pairs - step.benefit).max()
    if error > small:
        return float(small - error)
    return slack_of_bound(float(step.benefit.min()), small)


@statement(3, "pairwise bounds", evidence=STEPS, meaning="least slack, in score")
def pairwise_bounds(step: UpdateStep) -> float:
    """3. For every entering k+ and exiting k- of a token, with differences of shifted score (that
    of k+ minus that of k-; eqs. 14, 15 and 16):

          0 < new difference < u (s+ - s-) <= 2u
        -2u < old difference < 0
          0 < b(i) < 2u changes(i)

    (errata 2: the last of the first chain is <=.) The margin is the least slack of all of them.
    """
    u = deepseek_rate(step)
    require_no_ties(step)
    rows = step.changed
    require_hypothesis(rows.size > 0, NOTHING_SWITCHED)
    added, removed = _entering_and_exiting(step)
    old, new = step.shifted[rows], step.shifted_after[rows]
    unsigned = new - u * step.sign
    slacks = (
        # 0 < new difference
        _least_where(new, added) - _most_where(new, removed),
        # new difference < u (s+ - s-)
        _least_where(unsigned, removed) - _most_where(unsigned, added),
        # new difference < 2u
        2 * u - (_most_where(new, added) - _least_where(new, removed)),
        # -2u < old difference
        2 * u + (_least_where(old, added) - _most_where(old, removed)),
        # old difference < 0
        _least_where(old, removed) - _most_where(old, added),
        step.benefit,
        2 * u * added.sum(1) - step.benefit,
    )
    return slack_of_bound(float(min(each.min() for each in slacks)), 2 * step.tiny)


@statement(4, "Lagrangian, DeepSeek step", evidence=STEPS, meaning="least slack, in score")
def deepseek_lagrangian(step: UpdateStep) -> float:
    """4. With DeepSeek's step the change is sum_i b(i) - u sum_k |A_k - L| (eq. 20), at most
    u (2 changes - sum_k |A_k - L|) (eq. 21).

    The margin is the bound's slack; where the identity fails beyond rounding, minus what is beyond.
    """
    u = deepseek_rate(step)
    require_no_ties(step)
    require_movement(step)
    off = u * np.abs(step.gap).sum()
    changes = (step.after & ~step.before).sum()
    error = abs(step.change - (step.benefit.sum() - off))
    if error > step.tolerance:
        return float(step.tolerance - error)
    return slack_of_bound(float(2 * u * changes - off - step.change), step.tolerance)


@statement(5, "assignment changes", evidence=STEPS, meaning="difference of signs, less 1")
def assignment_changes(step: UpdateStep) -> float:
    """5. Entering experts are strictly less loaded than exiting ones:
    sign(L - A_k+) > sign(L - A_k-).

    The margin is the least difference of signs less 1: 0 or 1 where it holds. It holds however
    small the steps are, up to rounding (errata 22): two shifts of one sign move by u up to an ulp
    apart, so pairs whose shifted scores are equal up to rounding, before and after, are left out.
    """
    deepseek_rate(step)
    require_no_ties(step)
    require_hypothesis(step.changed.size > 0, NOTHING_SWITCHED)
    differences = [
        difference
        for token, added, removed in zip(step.changed, *_entering_and_exiting(step))
        for difference in _sign_differences(step, token, added, removed)
    ]
    require_hypothesis(bool(differences), "every switch was between scores equal up to rounding")
    return float(min(differences) - 1)


def _sign_differences(step: UpdateStep, token: int, added: Bools, removed: Bools) -> Floats:
    """sign(L - A_k+) - sign(L - A_k-) of the token's pairs that rounding cannot have swapped."""
    new, old = (each[token] for each in (step.shifted_after, step.shifted))
    apart = np.maximum(
        np.abs(np.subtract.outer(new[added], new[removed])),
        np.abs(np.subtract.outer(old[added], old[removed])),
    )
    return np.subtract.outer(step.sign[added], step.sign[removed])[apart > 2 * step.tiny]


@statement(6, "monotonicity", evidence=STEPS, meaning="least slack, in score")
def monotonicity(step: UpdateStep) -> float:
    """6. If no expert changes sides (over, under, exact), the Lagrangian does not grow.

    Checked in the sharper forms of errata 8: change <= -2u max(over, under) for integer L, and
    change <= -u sum |A' - L|. The margin is the least slack. Loads near balance cross L at almost
    every step, so at scale this seldom applies: see the sandwich.
    """
    u = deepseek_rate(step)
    require_no_ties(step)
    sign_after = np.sign(step.target - step.loads_after)
    require_hypothesis(
        bool((sign_after == step.sign).all()),
        "experts changed between overloaded, balanced and underloaded",
    )
    require_movement(step)
    bounds = [-u * np.abs(step.loads_after - step.target).sum(), 0.0]
    if (step.target == np.round(step.target)).all():
        bounds.append(-2 * u * max((step.sign < 0).sum(), (step.sign > 0).sum()))
    return slack_of_bound(float(min(bounds) - step.change), step.tolerance)


@statement(6, "sandwich, free of assumptions", evidence=STEPS, meaning="least slack, in score")
def sandwich(step: UpdateStep) -> float:
    """6, free of assumptions, ties allowed (errata 8):

        -u sum |A - L| <= change <= u sum_k s_k (A'_k - L)

    The margin is the least slack of the two. The right side is what one step can gain at most,
    whatever the scores.
    """
    u = deepseek_rate(step)
    require_movement(step)
    low = -u * np.abs(step.gap).sum()
    high = u * (step.sign * (step.loads_after - step.target)).sum()
    return slack_of_bound(float(min(step.change - low, high - step.change)), step.tolerance)


def _entering_and_exiting(step: UpdateStep) -> tuple[Bools, Bools]:
    """Of the changed tokens: which experts entered, and which left."""
    before, after = step.before[step.changed], step.after[step.changed]
    return after & ~before, before & ~after


def _least_where(values: Floats, where: Bools) -> Floats:
    return np.where(where, values, np.inf).min(1)


def _most_where(values: Floats, where: Bools) -> Floats:
    return np.where(where, values, -np.inf).max(1)
