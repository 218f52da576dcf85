"""Statements 9 and 11: loads enter a band around their target, in finite time, and stay.

How wide the band is depends on how many tokens can move at once (crowding.py): E - 1 if u < u-bar,
(E - 1) M(u), or the largest B_k(p) over the shifts visited. The proofs use nothing else, so each is
checked for all three. (With one tie rule for all steps an expert still only loses tokens while
overloaded, so only the first form asks for no ties.) Margins of 9 are in tokens, of 11 in steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from equipoise.theorems.evidence.crowding import most_in_a_window, near_threshold
from equipoise.theorems.evidence.hypotheses import (
    deepseek_rate,
    require_below_u_bar,
    require_no_ties,
)
from equipoise.theorems.evidence.runs import RUNS, FixedScoresRun
from equipoise.theorems.evidence.steps import UpdateStep
from equipoise.theorems.registry import statement_variants
from equipoise.theorems.verdict import Slack, require_hypothesis

BandWidth = Callable[[list[UpdateStep], list[float]], float]
"""(steps, u of each step) -> how far a load may be from its target, in tokens"""


def _below_u_bar(steps: list[UpdateStep], rates: list[float]) -> float:
    """E - 1, the paper's."""
    require_below_u_bar(steps[int(np.argmax(rates))])
    for step in steps:
        require_no_ties(step)
    return steps[0].scores.shape[1] - 1


def _by_window(steps: list[UpdateStep], rates: list[float]) -> float:
    """(E - 1) M(u)."""
    length = 2 * max(rates) + 2 * steps[0].tiny
    return (steps[0].scores.shape[1] - 1) * most_in_a_window(steps[0].scores, length)


def _by_threshold(steps: list[UpdateStep], rates: list[float]) -> float:
    """The largest B_k(p)."""
    return max(
        int(near_threshold(step, 2 * u + 2 * step.tiny).max()) for step, u in zip(steps, rates)
    )


WIDTHS: dict[str, BandWidth] = {
    "u < u-bar": _below_u_bar,
    "M(u)": _by_window,
    "B_k(p)": _by_threshold,
}


@statement_variants(9, "band stability", WIDTHS, evidence=RUNS, meaning="tokens")
def band_stability(run: FixedScoresRun, width: BandWidth) -> Slack:
    """9. Once |A_k - L| <= width it stays so. The width is that of "u < u-bar" (the paper's E - 1),
    "M(u)" or "B_k(p)".

    The margin is width less the largest |A_k - L| of an expert that was inside before, in tokens. A
    width above L says nothing.
    """
    steps, rates = _deepseek_steps(run)
    allowed = width(steps, rates)
    off = np.abs(run.path.loads - run.target)
    inside = off[:-1] <= allowed
    require_hypothesis(bool(inside.any()), f"no load was within {allowed:.0f} of its target")
    note = (
        f"the band is {allowed:.0f} tokens to either side, {allowed / run.target.min():.2g} "
        "of the target"
    )
    return Slack(float(allowed - off[1:][inside].max()), note)


@statement_variants(11, "band entry", WIDTHS, evidence=RUNS, meaning="steps to spare")
def band_entry(run: FixedScoresRun, width: BandWidth) -> Slack:
    """11. All loads enter the band within (E - 1)(ceil(R / 2u) + 1) steps, and stay.

    R is the range of the scores plus the diameter of the first shift (errata 7). The margin is the
    bound less the step by which the last expert had entered.
    """
    require_hypothesis(len(run) > 1, "one step is not a path: this needs a run on fixed scores")
    steps, rates = _deepseek_steps(run)
    moving = [u for u in rates if u > 0] or [math.inf]
    require_hypothesis(
        max(moving) - min(moving) <= 1e-6 * max(moving) or moving == [math.inf],
        "u changed on the way",
    )
    bound = entry_bound(run, moving[0])
    outside = np.abs(run.path.loads - run.target) > width(steps, rates)
    # the first step from which all are inside for good
    last = int(np.flatnonzero(outside.any(1)).max(initial=-1)) + 1
    require_hypothesis(
        last <= len(run) or len(run) >= bound,
        f"the run's {len(run)} steps end before the bound of {bound}, still outside",
    )
    return Slack(float(bound - last), f"inside for good from step {last}; the bound is {bound}")


def entry_bound(run: FixedScoresRun, u: float) -> int:
    """(E - 1)(ceil(R / 2u) + 1)."""
    reach = np.ptp(run.scores) + np.ptp(run.path.shifts[0])
    return (run.scores.shape[1] - 1) * (math.ceil(reach / (2 * u)) + 1)


def _deepseek_steps(run: FixedScoresRun) -> tuple[list[UpdateStep], list[float]]:
    steps = list(run)
    return steps, [deepseek_rate(step) for step in steps]
