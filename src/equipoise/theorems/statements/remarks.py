"""What the paper says in passing, and nothing else rests on."""

from __future__ import annotations

import numpy as np

from equipoise.optimum.loop import choose_top_k
from equipoise.theorems.evidence.runs import STEPS
from equipoise.theorems.evidence.steps import UpdateStep
from equipoise.theorems.registry import remark
from equipoise.theorems.verdict import Slack, require_hypothesis


@remark("softmax before or after top-K", evidence=STEPS)
def softmax_keeps_the_choice(step: UpdateStep) -> Slack:
    """Sec. 1: softmax is monotonic, so that top-K of the logits and top-K of the scores (eq. 1) are
    the same experts.

    Checked where no shift tells experts apart: recorded loads are those of top-K of the logits,
    which are the logarithms of the scores but for a constant of each token. Under a shift the order
    matters, since it is added to the scores. The margin is 0 less the tokens that are counted
    elsewhere; the note says how many would choose otherwise if this step's shift were added to the
    logits.
    """
    sums = step.scores.sum(1)
    require_hypothesis(bool(np.abs(sums - 1).max() < 1e-3), "rows of scores do not sum to 1")
    require_hypothesis(bool((step.scores > 0).all()), "a score is 0: its logit is lost")
    require_hypothesis(
        bool(np.ptp(step.shift) <= step.tiny), "a shift was added to the scores before the choice"
    )
    require_hypothesis(not step.ties_broken_otherwise, "ties were broken otherwise")
    logits = np.log(step.scores)
    elsewhere = np.abs(choose_top_k(logits, step.top_k).sum(0) - step.loads).sum() / 2
    after = choose_top_k(logits + step.shift_after, step.top_k)
    share = float((after != step.after).any(1).mean())
    return Slack(
        0.0 - float(elsewhere),
        f"added to logits, the next shift would choose otherwise for {share:.1%} of the tokens",
    )
