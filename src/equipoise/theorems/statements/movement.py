"""Statements 7, 8, 10: tokens that switch alike are alike, so few move at once; dominance.

The paper's form of 8 needs u < u-bar, which no float32 training has. Two others are checked beside
it (errata 7): M(u), and B_k(p), which needs no hypothesis on u at all and is the only one whose
bound is below the target load at scale.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from equipoise.theorems.evidence.crowding import most_in_a_window, near_threshold
from equipoise.theorems.evidence.hypotheses import (
    deepseek_rate,
    require_below_u_bar,
    require_no_ties,
)
from equipoise.theorems.evidence.runs import STEPS
from equipoise.theorems.evidence.steps import UpdateStep
from equipoise.theorems.registry import statement
from equipoise.theorems.verdict import Slack, require_hypothesis


@statement(
    7,
    "like switches, like gaps",
    evidence=STEPS,
    meaning="2u less the widest spread, in score",
)
def like_gaps(step: UpdateStep) -> float:
    """7. Two tokens that make the same swap have score gaps less than 2u apart.

    The margin is 2u less the widest spread, in score.
    """
    u = deepseek_rate(step)
    require_no_ties(step)
    crowds = {pair: tokens for pair, tokens in tokens_by_swap(step).items() if len(tokens) > 1}
    require_hypothesis(bool(crowds), "no two tokens switched alike")
    spreads = [
        np.ptp(step.scores[tokens, k] - step.scores[tokens, other])
        for (k, other), tokens in crowds.items()
    ]
    return float(2 * u - max(spreads) + 2 * step.tiny)


@statement(8, "unique movements, u < u-bar", evidence=STEPS, meaning="tokens")
def unique_movements(step: UpdateStep) -> float:
    """8. If u < u-bar, at most one token makes any given swap, and a load changes by at most E - 1.

    The margin is in tokens: 1 less the most tokens in one swap, or E - 1 less the largest change of
    a load.
    """
    require_below_u_bar(step)
    return float(
        min(1 - _most_in_one_swap(step), len(step.target) - 1 - _largest_load_change(step))
    )


@statement(8, "movements, M(u)", evidence=STEPS, meaning="tokens")
def crowded_movements(step: UpdateStep) -> Slack:
    """8 with M(u), the most gaps of one pair in a closed window of 2u: at most M tokens per swap,
    (E - 1) M per load.

    Ties allowed: windows are closed. The margin is in tokens, as in 8. M = 1 is the paper's case.
    """
    u = deepseek_rate(step)
    allowed = most_in_a_window(step.scores, 2 * u + 2 * step.tiny)
    bound = (len(step.target) - 1) * allowed
    slack = min(allowed - _most_in_one_swap(step), bound - _largest_load_change(step))
    return Slack(float(slack), f"M = {allowed}: {_in_loads(bound, step)}")


@statement(8, "movements, B_k(p)", evidence=STEPS, meaning="tokens")
def bounded_movements(step: UpdateStep) -> Slack:
    """8 with B_k(p), tokens within 2u of their threshold: |change of A_k| <= B_k(p).

    Ties allowed. The margin is the least slack over experts, in tokens: how many more would have
    had to be near the boundary.
    """
    u = deepseek_rate(step)
    bounds = near_threshold(step, 2 * u + 2 * step.tiny)
    slack = (bounds - np.abs(step.loads_after - step.loads)).min()
    return Slack(float(slack), _in_loads(int(bounds.max()), step))


def tokens_by_swap(step: UpdateStep) -> dict[tuple[int, int], list[int]]:
    """(entering, exiting) -> the tokens that took the one and dropped the other."""
    tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i in step.changed:
        for entering in np.flatnonzero(step.after[i] & ~step.before[i]):
            for exiting in np.flatnonzero(step.before[i] & ~step.after[i]):
                tokens[int(entering), int(exiting)].append(int(i))
    return tokens


def _most_in_one_swap(step: UpdateStep) -> int:
    return max((len(tokens) for tokens in tokens_by_swap(step).values()), default=0)


def _largest_load_change(step: UpdateStep) -> int:
    return int(np.abs(step.loads_after - step.loads).max())


def _in_loads(bound: int, step: UpdateStep) -> str:
    return f"a load may change by {bound} tokens, {bound / step.target.min():.2g} of its target"


@statement(
    10,
    "uniform dominance",
    evidence=STEPS,
    meaning="least difference of loads, in tokens",
)
def dominance(step: UpdateStep) -> float:
    """10. If every token scores k above l (shifted), k is chosen wherever l is: A_k >= A_l.

    The margin is the least A_k - A_l over such pairs, in tokens. It applies where a shift has gone
    too far.
    """
    require_hypothesis(
        bool((step.loads == step.before.sum(0)).all()),
        "the recorded loads are not those of top-K of scores + shift: the router did something "
        "else",
    )
    pairs = _dominating_pairs(step)
    require_hypothesis(bool(pairs), "no expert dominates another for all tokens")
    skipped = max((step.before[:, low] & ~step.before[:, high]).sum() for high, low in pairs)
    if skipped:
        return -float(skipped)
    return float(min(step.loads[high] - step.loads[low] for high, low in pairs))


def _dominating_pairs(step: UpdateStep) -> list[tuple[int, int]]:
    """Pairs (k, l) with k above l for every token. A few tokens rule most pairs out."""
    few = step.shifted[:64]
    likely = np.argwhere((few[:, :, None] > few[:, None, :]).all(0))
    return [
        (int(k), int(low)) for k, low in likely if (step.shifted[:, k] > step.shifted[:, low]).all()
    ]
