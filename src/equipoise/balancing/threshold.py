"""Threshold: experts take every token that scores above a bar of their own (arXiv 2603.11535).

    x_ik = 1 where s_ik > beta_k              a token has as many experts as want it, 0 to `most`
    beta_k <- 0.9 beta_k + 0.1 q_k            q_k: the (1 - K/E)-quantile of expert k's scores

In the assignment program it is the dual without a price per token: each expert's load is right on
average, and a token's number of experts is K on average only. A token's choice depends on no other
token, so it is the same while training and while a decoder generates.

**Places.** `Routing.experts` is (T, most), best first; places without an expert hold `num_experts`,
which is no expert's number, and a gate of 0, as in expert choice. The paper has no `most`: there
it is num_experts. With less, a token that more experts want keeps the `most` furthest above their
thresholds, and loads fall short by what is cut, since quantiles know nothing of it.

**Gates** are the unshifted scores of the experts taken; `renormalize` divides by the sum of these.
A token without an expert has only zeros. **Capacity**: an expert's load in a batch varies around
K T / E by chance, and nothing is dropped here; who dispatches to fixed buffers drops by capacity.

Quantiles come from histograms (mathematics/histogram.py), which add up over micro-batches and
ranks. The average begins with the first quantile, not with 0: before the first update each token
takes its K highest scores. Where all scores are equal, none lies above its own quantile, and no
expert takes a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.shift.quantile import QuantileMove
from equipoise.balancing.target import Target, Weights
from equipoise.routing import Groups, Routing, Tally, route
from equipoise.routing.checks import require_tensor
from equipoise.routing.kernels.operators import best_experts
from equipoise.routing.kernels.reference import bins_per_distance, scatter_bins


class ThresholdMove(QuantileMove):
    """From the thresholds to this batch's quantiles, negated: what a shift -beta moves by."""

    needs_runner_up = False
    part = "above"

    def count(self, scores: Tensor, routing: Routing, shift: Tensor) -> dict[str, Tensor]:
        lead = scores.detach().float() + shift
        scale = bins_per_distance(self.width, self.bins).to(scores.device)
        real = torch.ones_like(lead[:, 0], dtype=torch.bool)
        real = real if routing.mask is None else ~routing.mask
        return {self.part: scatter_bins(lead, real, scale, self.bins)}


class Threshold(Balancer):
    """Each expert takes the tokens that score above its threshold.

    Args:
        num_experts: E.
        top_k: K, the experts of a token on average.
        ema: the share of a threshold that stays in an update.
        most: the most experts of one token; by default 2 K.
        target: weights of the experts' target loads; equal by default.
    """

    takes_top_k = False
    thresholds: Tensor
    always: Tensor

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        *,
        ema: float = 0.9,
        most: int | None = None,
        target: Weights = None,
    ) -> None:
        super().__init__(num_experts, top_k)
        if not 0 <= ema < 1:
            raise ValueError(f"ema must be in [0, 1), not {ema}")
        most = min(2 * top_k, num_experts) if most is None else most
        if not top_k <= most <= num_experts:
            raise ValueError(
                f"most = {most} experts of a token is impossible: top_k = {top_k} is their mean, "
                f"and there are {num_experts} experts"
            )
        self.ema, self.most = ema, most
        self.target = Target(num_experts, top_k, target)
        self.move = ThresholdMove()
        self.move.build(num_experts)
        self.keep_buffer("thresholds", 0.0, (num_experts,))
        # an expert that should have every token has no threshold
        every = torch.tensor(self.target.shares, device="cpu") * top_k > 1 - 1e-6
        shape = (num_experts,)
        self.keep_buffer("always", every, shape, dtype=torch.bool, persistent=False)

    @property
    def chooses_by_shift(self) -> bool:
        return False

    @property
    def shift_or_zeros(self) -> Tensor:
        return -self.thresholds.detach()

    def adjust(self, scores: Tensor) -> Tensor:
        """scores - thresholds, at least in float32: above 0 where an expert takes a token."""
        require_tensor(scores, "scores")
        if scores.shape[-1] != self.num_experts:
            raise ValueError(
                f"scores are over {scores.shape[-1]} experts, the balancer over {self.num_experts}"
            )
        return scores.detach() - self.thresholds.to(scores.device)

    def route(
        self,
        scores: Tensor,
        *,
        groups: Groups | tuple[int, int] | None = None,
        mask: Tensor | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
    ) -> Routing:
        """As `equipoise.route`, but with the experts of each token that take it; see the top of the
        file.
        """
        if groups is not None:
            raise ValueError(
                "threshold asks each expert alone and cannot keep to groups: route without groups, "
                "or choose a balancer that learns a shift"
            )
        lead = self.adjust(scores).flatten(0, -2)
        taken = self._taken(lead)
        routing = route(
            scores.flatten(0, -2).masked_fill(~taken, 0.0),
            self.most,
            choose_by=lead,
            mask=None if mask is None else mask.flatten(),
            renormalize=renormalize,
            scale=scale,
            runner_up=False,
        )
        experts = routing.experts.masked_fill(~taken.gather(1, routing.experts), self.num_experts)
        counted = taken if routing.mask is None else taken & ~routing.mask.unsqueeze(1)
        return routing._replace(experts=experts, loads=counted.sum(0))

    def _taken(self, lead: Tensor) -> Tensor:
        """(T, E) bool: who takes which tokens."""
        best = best_experts(lead, self.most)
        first = torch.arange(self.most, device=lead.device) < self.top_k
        above = (lead.gather(1, best) > 0) | self.always.to(lead.device)[best]
        wanted = torch.where(self.steps.to(lead.device) > 0, above, first)
        return torch.zeros_like(lead, dtype=torch.bool).scatter(1, best, wanted)

    def tally(self, scores: Tensor, routing: Routing) -> Tally:
        tally = super().tally(scores, routing)
        flat, shift = scores.detach().flatten(0, -2), self.shift_or_zeros.to(scores.device)
        tally.parts.update(self.move.count(flat, routing, shift))
        return tally

    def _check_tally(self, tally: Tally) -> Tally:
        tally = super()._check_tally(tally)
        wanted = self.move.part_shapes(self.num_experts) | self.penalty_part_shapes()
        theirs = {name: tuple(part.shape) for name, part in tally.parts.items()}
        if wanted != theirs:
            raise ValueError(
                f"this tally counts {theirs or 'loads alone'}, threshold {wanted}: take it by this "
                "balancer's own tally()"
            )
        return tally

    def _has_tokens(self, tally: Tally) -> Tensor:
        """Thresholds above all scores leave loads of 0, and must come down all the same."""
        return tally.parts[self.move.part].sum() > 0

    def _move(self, tally: Tally) -> None:
        n = (self.steps + 1).to(torch.float64)
        # the weight of the newest of n in an average of all, which fades by ema
        weight = (1 - self.ema) / (1 - self.ema**n)
        move = (weight * self.move(tally, self.target)).to(torch.float32)
        self.thresholds.sub_(move.masked_fill(self.always, 0.0))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, most={self.most}"
