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

A batch much smaller than usual says little, and one token nothing: it moves shift and widths by its
share of the usual number of tokens. With batches of one size nothing of this is seen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.mathematics.evidence import evidence_weight, usual_size
from equipoise.balancing.mathematics.histogram import (
    FIRST_WIDTH,
    counts_from_top,
    quantile_move,
    within_groups,
)
from equipoise.balancing.shift.directions import Direction
from equipoise.balancing.target import Target
from equipoise.routing import Routing, Tally
from equipoise.routing.kernels.operators import bin_distances
from equipoise.routing.kernels.reference import (
    bins_per_distance,
    lead_over_runner_up,
    scatter_bins,
)


class QuantileMove(Direction):
    """The move to each expert's own quantile, from a histogram.

    It is within one bin of `exact_quantile_move`.
    """

    # balanced loads have a lead of 0 somewhere between two tokens, not in the middle
    moves_when_balanced = True
    needs_runner_up = True
    part = "leads"
    """its name in the tally"""
    from_kth_choice = False
    """whether what is not chosen is measured from the K-th choice, not from the runner-up"""
    width: Tensor
    usual_tokens: Tensor

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
        self.keep_buffer("usual_tokens", 0.0)

    def upgrade_state(self, state_dict: dict[str, Tensor], prefix: str) -> None:
        """States of before 2026-11-19 do not know how large a batch usually is."""
        if prefix + "width" in state_dict and "usual_tokens" in self._buffers:
            state_dict.setdefault(prefix + "usual_tokens", self.first_value("usual_tokens"))

    @staticmethod
    def distance(scores: Tensor, routing: Routing, shift: Tensor) -> Tensor:
        """(T, E): what is sorted."""
        return expert_leads(scores, routing, shift)

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        """The histogram (E, bins + 2): below, the bins, above."""
        return {self.part: self._count_every(1, scores, routing, shift)}

    def _count_every(self, stride: int, scores: Tensor, routing: Routing, shift: Tensor) -> Tensor:
        """The histogram of every `stride`-th token."""
        runner_up, margin = runner_up_and_margin(routing)
        scale = self.of_experts(bins_per_distance(self.width, self.bins)).to(scores.device)
        if routing.group_margin is None:
            return bin_distances(
                scores, shift, runner_up, margin, routing.mask, scale, self.bins,
                flips=self.from_kth_choice, stride=stride,
            )  # fmt: skip
        every = slice(None, None, stride)
        distance = self.distance(scores, routing, shift)[every]
        return scatter_bins(distance, _has_threshold(routing)[every], scale, self.bins)

    def part_shapes(self, num_experts: int) -> dict[str, tuple[int, ...]]:
        return {self.part: (num_experts, self.bins + 2)}

    def forward(self, tally: Tally, target: Target) -> Tensor:
        move, width, tokens = self._whole_move(tally, target)
        self.usual_tokens.copy_(usual_size(self.usual_tokens, tokens))
        weight = evidence_weight(self.usual_tokens, tokens)
        # exact at both ends: nothing of the old width is left where the weight is 1
        self.width.lerp_(width, weight.to(width.dtype))
        return weight * move

    def _whole_move(self, tally: Tally, target: Target) -> tuple[Tensor, Tensor, Tensor]:
        """The move this batch alone asks for, the next widths, and how many tokens it shows."""
        from_top = counts_from_top(tally.parts[self.part])
        want = target.loads(target.choices(from_top[:, -1]))
        return *quantile_move(from_top, want, self.width, self.slack), from_top[0, -1]

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
