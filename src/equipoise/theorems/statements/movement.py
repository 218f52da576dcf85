"""Statements 7 and 8: tokens that switch alike are alike, so few move at once. Statement 10:
dominance.

The paper's form of 8 needs u < u-bar, which no float32 training has. Two others are checked beside
it (errata 7): M(u), and B_k(p), which needs no hypothesis on u at all and is the only one whose
bound is below the target load at scale.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from equipoise.theorems.evidence.crowding import (
    least_gap_difference,
    most_in_a_window,
    near_threshold,
)
from equipoise.theorems.evidence.program import (
    Source,
    Step,
    deepseek_rate,
    require_no_ties,
    steps_of,
)
from equipoise.theorems.verdict import Slack, Verdict, judge, require


def swaps(step: Step) -> dict[tuple[int, int], list[int]]:
    """(entering, exiting) -> the tokens that took the one and dropped the other."""
    tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i in step.changed:
        for entering in np.flatnonzero(step.after[i] & ~step.before[i]):
            for exiting in np.flatnonzero(step.before[i] & ~step.after[i]):
                tokens[int(entering), int(exiting)].append(int(i))
    return tokens


def like_gaps(source: Source) -> Verdict:
    """7. Two tokens that drop the same expert for the same other have score gaps less than 2u
    apart.

    The margin is 2u less the widest spread, in score.
    """
    return judge(
        "7 like switches, like gaps",
        _like_gaps,
        steps_of(source),
        "2u less the widest spread, in score",
    )


def _like_gaps(step: Step) -> float:
    u = deepseek_rate(step)
    require_no_ties(step)
    crowds = {pair: tokens for pair, tokens in swaps(step).items() if len(tokens) > 1}
    require(bool(crowds), "no two tokens switched alike")
    spreads = [
        np.ptp(step.scores[tokens, k] - step.scores[tokens, other])
        for (k, other), tokens in crowds.items()
    ]
    return float(2 * u - max(spreads) + 2 * step.tiny)


def unique_movements(source: Source) -> Verdict:
    """8. If u < u-bar, at most one token makes any given swap, and a load changes by at most E - 1.

    The margin is in tokens: 1 less the most tokens in one swap, or E - 1 less the largest change of
    a load.
    """
    return judge("8 unique movements, u < u-bar", _unique, steps_of(source), "tokens")


def require_below_u_bar(step: Step) -> float:
    """Hypothesis: 0 < u < u-bar. Gives u."""
    u = deepseek_rate(step)
    require_no_ties(step)
    least = least_gap_difference(step.scores, enough=2 * u + 2 * step.tiny)
    require(
        2 * u + 2 * step.tiny < least,
        f"u = {u:.1e} is not below u-bar, which is at most {least / 2:.1e}",
    )
    return u


def _unique(step: Step) -> float:
    require_below_u_bar(step)
    most = max((len(tokens) for tokens in swaps(step).values()), default=0)
    return float(min(1 - most, len(step.target) - 1 - _most_changed(step)))


def crowded_movements(source: Source) -> Verdict:
    """8 with M(u), the most gaps of one pair in a closed window of 2u: at most M tokens per swap,
    (E - 1) M per load.

    Ties allowed: windows are closed. The margin is in tokens, as in 8. M = 1 is the paper's case.
    """
    return judge("8 movements, M(u)", _crowded, steps_of(source), "tokens")


def _crowded(step: Step) -> Slack:
    u = deepseek_rate(step)
    allowed = most_in_a_window(step.scores, 2 * u + 2 * step.tiny)
    most = max((len(tokens) for tokens in swaps(step).values()), default=0)
    bound = (len(step.target) - 1) * allowed
    return Slack(
        float(min(allowed - most, bound - _most_changed(step))),
        f"M = {allowed}: {_in_loads(bound, step)}",
    )


def bounded_movements(source: Source) -> Verdict:
    """8 with B_k(p), the tokens within 2u of their threshold: |change of A_k| <= B_k(p). Ties
    allowed.

    The margin is the least slack over experts, in tokens: how many more would have had to be near
    the boundary.
    """
    return judge("8 movements, B_k(p)", _bounded, steps_of(source), "tokens")


def _bounded(step: Step) -> Slack:
    u = deepseek_rate(step)
    bounds = near_threshold(step, 2 * u + 2 * step.tiny)
    slack = (bounds - np.abs(step.loads_after - step.loads)).min()
    return Slack(float(slack), _in_loads(int(bounds.max()), step))


def _in_loads(bound: int, step: Step) -> str:
    return f"a load may change by {bound} tokens, {bound / step.target.min():.2g} of its target"


def _most_changed(step: Step) -> int:
    return int(np.abs(step.loads_after - step.loads).max())


def dominance(source: Source) -> Verdict:
    """10. If every token scores expert k above l (shifted), then k is chosen wherever l is, and A_k
    >= A_l.

    The margin is the least A_k - A_l over such pairs, in tokens. It applies where a shift has gone
    too far.
    """
    return judge(
        "10 uniform dominance", _dominance, steps_of(source), "least difference of loads, in tokens"
    )


def _dominance(step: Step) -> float:
    top_k = (step.loads == step.before.sum(0)).all()
    require(
        bool(top_k),
        "the recorded loads are not those of top-K of scores + shift: the router did something "
        "else",
    )
    pairs = _dominating(step)
    require(bool(pairs), "no expert dominates another for all tokens")
    skipped = max((step.before[:, low] & ~step.before[:, high]).sum() for high, low in pairs)
    return (
        -float(skipped)
        if skipped
        else float(min(step.loads[high] - step.loads[low] for high, low in pairs))
    )


def _dominating(step: Step) -> list[tuple[int, int]]:
    """Pairs (k, l) with k above l for every token. A few tokens rule most pairs out."""
    few = step.shifted[:64]
    likely = np.argwhere((few[:, :, None] > few[:, None, :]).all(0))
    return [
        (int(k), int(low)) for k, low in likely if (step.shifted[:, k] > step.shifted[:, low]).all()
    ]
