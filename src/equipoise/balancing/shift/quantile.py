"""Quantile balancing (Su 2026; Kimi K3): move every expert's shift straight to where its load would
be right.

In the dual with one price y_i per token and one shift p_k per expert (errata of the paper: x <= 1
must be kept),

    f(y, p) = K sum_i y_i - sum_k L_k p_k + sum_ik max(0, gamma_ik + p_k - y_i),

y_i = the (K+1)-th largest of gamma_i + p is a minimiser for fixed p. For fixed y the problem falls
apart into one dimension per expert, and its minimisers are the p_k for which exactly L_k tokens
have gamma_ik + p_k > y_i: every value between two neighbours in a sorted list. So one update is an
exact block-coordinate step, and there is no step size.

What is sorted is the *lead* of an expert over a token's threshold,

    x_ik = gamma_ik + p_k - y_i,
    p_k <- p_k - (the middle between the L_k-th and the (L_k + 1)-th largest x_ik).

Sorting does not add up over micro-batches and ranks; a histogram does. It has `bins` equal bins
over [-width_k, width_k] and one more on either side for what falls outside. The widths are state,
frozen between updates: 1 at first (scores in [0, 1] cannot lead by more), then as wide as the leads
of ranks L/4 to 4L, so that softmax scores near 1/E get bins a hundred times finer than sigmoid's.
Where the quantile fell outside, the shift moves to the edge and the width grows fourfold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.mathematics.histogram import (
    FIRST_WIDTH,
    count_distances,
    counts_from_top,
    lead_over_runner_up,
    quantile_move,
    within_groups,
)
from equipoise.balancing.shift.directions import Direction
from equipoise.balancing.target import Target
from equipoise.routing import Routing, Tally


class QuantileMove(Direction):
    """The move to each expert's own quantile, from a histogram.

    It is within one bin of `exact_quantile_move`.
    """

    # balanced loads have a lead of 0 somewhere between two tokens, not in the middle
    moves_when_balanced = True
    needs_runner_up = True
    part = "leads"
    """its name in the tally"""
    width: Tensor

    def __init__(self, bins: int = 512, slack: float = 1.0) -> None:
        """`slack` says how many times wider than needed the bins reach.

        More finds what jumped, less resolves finer.
        """
        super().__init__()
        if bins < 2 or bins % 2:
            raise ValueError(
                "a histogram needs an even number of bins, at least 2, so that 0 is an edge: not "
                f"{bins}"
            )
        self.bins = bins
        self.slack = slack

    def build(self, num_experts: int) -> None:
        self.keep_buffer("width", FIRST_WIDTH, (num_experts,))

    @staticmethod
    def distance(scores: Tensor, routing: Routing, shift: Tensor) -> Tensor:
        """(T, E): what is sorted."""
        return expert_leads(scores, routing, shift)

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        """The histogram (E, bins + 2): below, the bins, above."""
        distance = self.distance(scores, routing, shift)
        width = self.width.to(scores.device)
        return {self.part: count_distances(distance, _has_threshold(routing), width, self.bins)}

    def part_shapes(self, num_experts: int) -> dict[str, tuple[int, ...]]:
        return {self.part: (num_experts, self.bins + 2)}

    def forward(self, tally: Tally, target: Target) -> Tensor:
        from_top = counts_from_top(tally.parts[self.part])
        want = target.loads(from_top[:, -1] * target.top_k)
        move, width = quantile_move(from_top, want, self.width, self.slack)
        self.width.copy_(width)
        return move

    def extra_repr(self) -> str:
        return f"bins={self.bins}"


def expert_leads(scores: Tensor, routing: Routing, shift: Tensor) -> Tensor:
    """x_ik = gamma_ik + p_k - y_i, (T, E): how far an expert lies above the token's runner-up.

    With groups, an expert is no closer to being chosen than its group is to being allowed, and no
    safer than its group is.
    """
    lead = lead_over_runner_up(scores + shift, runner_up_and_margin(routing)[0])
    return lead if routing.group_margin is None else within_groups(lead, routing.group_margin)


def runner_up_and_margin(routing: Routing) -> tuple[Tensor, Tensor]:
    """Runner-up and margin, (T,) each, of a routing that has them."""
    if routing.runner_up is None or routing.margin is None:
        raise ValueError(
            "this balancer needs the runner-up: route by balancer.route(scores), or route(..., "
            "runner_up=True)"
        )
    return routing.runner_up, routing.margin


def exact_quantile_move(scores: Tensor, routing: Routing, shift: Tensor, target: Target) -> Tensor:
    """The slow twin of QuantileMove: the same move by sorting all leads, in float64.

    It needs the whole batch at once.
    """
    lead = expert_leads(scores.double(), routing, shift.double())[_has_threshold(routing)]
    ordered = lead.sort(0, descending=True).values
    want = target.loads(torch.tensor(len(lead) * target.top_k, device=scores.device))
    ranks = torch.stack((want.ceil(), want.floor() + 1)).clamp(1, len(lead)).long()
    return -ordered.gather(0, ranks - 1).mean(0)


def _has_threshold(routing: Routing) -> Tensor:
    """(T,) bool: tokens that have a runner-up and are not padding.

    The others have no threshold to lead over.
    """
    some = torch.isfinite(runner_up_and_margin(routing)[1])
    return some if routing.mask is None else some & ~routing.mask
