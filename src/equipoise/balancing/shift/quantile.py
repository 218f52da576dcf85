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

    x_ik = gamma_ik + p_k - y_i,        p_k <- p_k - (the middle between the L_k-th and the (L_k + 1)-th largest x_ik).

Sorting does not add up over micro-batches and ranks; a histogram does. It has `bins` equal bins
over [-width_k, width_k] and one more on either side for what falls outside. The widths are state,
frozen between updates: 1 at first (scores in [0, 1] cannot lead by more), then as wide as the leads
of ranks L/4 to 4L, so that softmax scores near 1/E get bins a hundred times finer than sigmoid's.
Where the quantile fell outside, the shift moves to the edge and the width grows fourfold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.shift.directions import Direction
from equipoise.balancing.target import Target
from equipoise.routing import Routing, Tally

FIRST_WIDTH = 1.0
_GROWTH = 4.0  # of the width, where the quantile fell outside it
_LEAST_WIDTH, _MOST_WIDTH = 1e-6, 16.0
_REACH = 4.0  # bins cover the ranks from L / 4 to 4 L


class QuantileMove(Direction):
    """The move to each expert's own quantile, from a histogram. Within one bin of
    `exact_quantile_move`.
    """

    moves_when_balanced = (
        True  # balanced loads have a lead of 0 somewhere between two tokens, not in the middle
    )
    needs_runner_up = True
    part = "leads"
    """its name in the tally"""
    width: Tensor

    def __init__(self, bins: int = 512, slack: float = 1.0) -> None:
        """`slack`: how many times wider than needed the bins reach; more finds what jumped, less
        resolves finer.
        """
        super().__init__()
        if bins < 2 or bins % 2:
            raise ValueError(
                "a histogram needs an even number of bins, at least 2, so that 0 is an edge: "
                f"not {bins}"
            )
        self.bins = bins
        self.slack = slack

    def build(self, num_experts: int) -> None:
        self.register_buffer("width", torch.full((num_experts,), FIRST_WIDTH))

    @staticmethod
    def distance(scores: Tensor, routing: Routing, shift: Tensor) -> Tensor:
        """(T, E): what is sorted."""
        return leads(scores, routing, shift)

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        """The histogram (E, bins + 2): below, the bins, above."""
        distance = self.distance(scores, routing, shift)
        place = (distance / self.width.to(scores.device) + 1) * (self.bins / 2) + 1
        place = place.clamp(0, self.bins + 1).to(
            torch.int64
        )  # floor, since nothing is negative after the clamp
        num_experts = scores.shape[1]
        place = place + torch.arange(num_experts, device=scores.device) * (self.bins + 2)
        counted = _counted(routing).to(torch.int64).unsqueeze(1).expand_as(place)
        empty = torch.zeros(num_experts * (self.bins + 2), dtype=torch.int64, device=scores.device)
        return {
            self.part: empty.scatter_add_(0, place.flatten(), counted.flatten()).view(
                num_experts, -1
            )
        }

    def forward(self, tally: Tally, target: Target) -> Tensor:
        return self.move(self.from_top(tally), target)

    def from_top(self, tally: Tally) -> Tensor:
        """(E, bins + 2) float64: tokens in the highest bin, in the highest two, ..., in all."""
        return tally.parts[self.part].flip(1).cumsum(1).double()

    def move(self, from_top: Tensor, target: Target) -> Tensor:
        """The move to the middle between the L-th and the (L + 1)-th, and the next widths."""
        tokens = from_top[:, -1]  # the same for every expert
        want = target.loads(tokens * target.top_k)
        ranks = torch.stack((want.ceil(), want.floor() + 1, want / _REACH, want * _REACH), dim=1)
        here, next_, top, bottom = self.distance_of_rank(from_top, ranks).unbind(1)
        middle = (here + next_) / 2
        some = tokens > 0
        self.width.copy_(torch.where(some, self._next_width(middle, top, bottom), self.width))
        return torch.where(some, -middle, 0.0)

    def distance_of_rank(self, from_top: Tensor, rank: Tensor) -> Tensor:
        """(E, R): the rank-th largest of each expert, interpolated within its bin."""
        rank = torch.minimum(rank.clamp_min(1), from_top[:, -1:])
        place = torch.searchsorted(from_top, rank)
        above = torch.where(place > 0, from_top.gather(1, (place - 1).clamp_min(0)), 0.0)
        inside = (from_top.gather(1, place) - above).clamp_min(1)
        deep = (rank - above - 0.5) / inside  # 0 at the top of the bin
        edge = (
            self.bins + 1 - place - deep
        ) / self.bins * 2 - 1  # the upper edge of bin b is b, the lower b - 1
        return edge.clamp(-1.0, 1.0) * self.width.unsqueeze(1)

    def _next_width(self, middle: Tensor, top: Tensor, bottom: Tensor) -> Tensor:
        bin_width = 2 * self.width / self.bins
        covering = torch.maximum(top - middle, middle - bottom) + 2 * bin_width
        outside = middle.abs() >= self.width - bin_width
        return torch.where(outside, self.width * _GROWTH, self.slack * covering).clamp(
            _LEAST_WIDTH, _MOST_WIDTH
        )

    def extra_repr(self) -> str:
        return f"bins={self.bins}"


def leads(scores: Tensor, routing: Routing, shift: Tensor) -> Tensor:
    """x_ik = gamma_ik + p_k - y_i, (T, E): how far an expert lies above the token's runner-up.

    With groups, an expert is no closer to being chosen than its group is to being allowed, and no
    safer than its group is.
    """
    shifted = scores + shift
    lead = shifted - shifted.gather(1, boundary(routing)[0].unsqueeze(1))
    return lead if routing.group_margin is None else within_groups(lead, routing.group_margin)


def boundary(routing: Routing) -> tuple[Tensor, Tensor]:
    """Runner-up and margin, (T,) each, of a routing that has them."""
    if routing.runner_up is None or routing.margin is None:
        raise ValueError(
            "this balancer needs the runner-up: route by balancer.route(scores), or route(..., "
            "runner_up=True)"
        )
    return routing.runner_up, routing.margin


def within_groups(distance: Tensor, group_margin: Tensor) -> Tensor:
    """The lesser of an expert's own distance (T, E) and its group's (T, G)."""
    by_group = distance.unflatten(1, (group_margin.shape[1], -1))
    return torch.minimum(by_group, group_margin.unsqueeze(2)).flatten(1)


def exact_quantile_move(scores: Tensor, routing: Routing, shift: Tensor, target: Target) -> Tensor:
    """The slow twin of QuantileMove: the same move by sorting all leads, in float64. It needs the
    whole batch at once.
    """
    lead = leads(scores.double(), routing, shift.double())[_counted(routing)]
    ordered = lead.sort(0, descending=True).values
    want = target.loads(torch.tensor(len(lead) * target.top_k, device=scores.device))
    ranks = torch.stack((want.ceil(), want.floor() + 1)).clamp(1, len(lead)).long()
    return -ordered.gather(0, ranks - 1).mean(0)


def _counted(routing: Routing) -> Tensor:
    """(T,) bool: tokens that have a runner-up and are not padding. The others have no threshold to
    lead over.
    """
    some = torch.isfinite(boundary(routing)[1])
    return some if routing.mask is None else some & ~routing.mask
