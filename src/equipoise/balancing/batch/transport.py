"""Transport: plans for a whole batch whose K best entries per token make loads nearly even, without
a wait for the device.

Send T tokens to E experts, K choices from each token and L_k to each expert: a transport problem.
Sinkhorn blurs it with entropy, and has a plan in closed steps; BIP walks down its dual. Neither
rounds its plan to a whole one, as Base does (matching.py): each token just takes its K best
entries, and loads come out nearly even.

Both say their choice in scores (`adjust`), and both leave padding out of the plan if `route` is
told of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.balancing.batch.matching import Matching, Weights
from equipoise.routing import Groups, Routing, route
from equipoise.routing.checks import scores_are_checked
from equipoise.routing.route import check_shapes


class Plan(Matching):
    """A method that ranks all experts for all tokens by a plan over the batch."""

    @abstractmethod
    def plan(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """(T, E) scores, at least float32, and the padding (T,) -> (T, E) what to choose by."""

    def adjust(self, scores: Tensor) -> Tensor:
        """What the plan ranks by, every token taking part; in evaluation the scores. `route` knows
        the padding too.
        """
        return self._choose_by(scores, None)

    def route(
        self,
        scores: Tensor,
        *,
        groups: Groups | tuple[int, int] | None = None,
        mask: Tensor | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
    ) -> Routing:
        """As `equipoise.route`. Padding has no part in the plan, and is ranked by its prices;
        groups the plan does not know.
        """
        check_shapes(scores, self.top_k, None, None, mask)
        choose_by = self._choose_by(scores, mask)
        return route(
            scores,
            self.top_k,
            choose_by=choose_by,
            groups=groups,
            mask=mask,
            renormalize=renormalize,
            scale=scale,
        )

    def _choose_by(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        plain = super().adjust(scores)
        if not self.training:
            return plain
        flat = plain.flatten(0, -2).to(torch.promote_types(plain.dtype, torch.float32))
        return self.plan(flat, None if mask is None else mask.flatten()).view(scores.shape)


def log_odds(scores: Tensor) -> Tensor:
    """log(s / (1 - s)): the router's logits where scores are sigmoids, nearly so (but for a
    constant per token) for softmax.
    """
    if scores_are_checked(scores) and scores.numel() and (scores.amin() < 0 or scores.amax() > 1):
        raise ValueError(
            "log_odds needs scores between 0 and 1, as sigmoid and softmax give: for others, "
            "pass a function from scores to "
            "logits as logits_of"
        )
    small = torch.finfo(scores.dtype)
    return scores.clamp_min(small.tiny).log() - (-scores.clamp_max(1 - small.eps)).log1p()


class Sinkhorn(Plan):
    """S-BASE (Clark et al. 2022; Megatron): the K best entries of the entropic transport plan

        P_ik = exp(logit_ik / temperature + row_i + column_k),    sum_k P_ik = K,    sum_i P_ik = L_k,

    found by making rows and columns right in turn, in float32 logarithms. Chosen by is log P.

    Logits are made from scores by `logits_of`. With exp(score / temperature) in their place the
    plan is as even, but its K best entries are not: an entry may exceed 1 (the paper's dual forgets
    x <= 1 likewise), and what exceeds it is lost. Measured at T = 16,384, E = 64, K = 6 on skewed
    softmax and sigmoid scores: an imbalance of 0.013 and 0.012 from logits, at best 0.13 and 0.15
    from scores, against 0.86 and 0.87 without balancing.

    Not causal: while training, a token's experts depend on later tokens of the batch. In evaluation
    each token takes its K highest scores.

    Args:
        num_experts: E.
        top_k: K.
        iterations: how often rows and columns are made right.
        temperature: of the entropy, in logits. 1 is Megatron's, and best for equal loads; unequal
            targets are followed better at 0.5 (an imbalance of 0.05, against 0.2 at 1).
        logits_of: from scores to logits. For scores that may exceed 1, choose another: torch.log,
            or their inverse.
        target: weights of the experts' target loads; equal by default.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        *,
        iterations: int = 8,
        temperature: float = 1.0,
        logits_of: Callable[[Tensor], Tensor] = log_odds,
        target: Weights = None,
    ) -> None:
        super().__init__(num_experts, top_k, target=target)
        if iterations < 1 or not temperature > 0:
            raise ValueError(
                f"sinkhorn needs iterations >= 1 and temperature > 0, not {iterations} and "
                f"{temperature}"
            )
        self.iterations = iterations
        self.temperature = temperature
        self.logits_of = logits_of

    def plan(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """log P, (T, E). Columns are right as they were made right last; rows as far as the
        iterations have come.
        """
        logits = self.logits_of(scores) / self.temperature
        present = (
            torch.ones_like(scores[:, :1], dtype=torch.bool) if mask is None else ~mask.unsqueeze(1)
        )
        row_sum, column_sums = self._marginals(present, scores.dtype)
        column = torch.zeros_like(column_sums)
        for _ in range(self.iterations):
            row = row_sum - (logits + column).logsumexp(1, keepdim=True)
            column = column_sums - (logits + row).masked_fill(~present, -torch.inf).logsumexp(0)
            column = torch.where(present.any(), column, 0.0)  # no tokens: no plan, and no NaN
        return logits + row + column

    def _marginals(self, present: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The logarithms of K, (), and of the target loads, (E,)."""
        weights = self.target.weights.to(present.device)
        loads = weights / weights.sum() * (present.sum() * self.top_k)
        return torch.tensor(self.top_k, dtype=dtype, device=present.device).log(), loads.log().to(
            dtype
        )

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, iterations={self.iterations}, "
            f"temperature={self.temperature:g}"
        )


class BIP(Plan):
    """BIP (Sun 2025): a few rounds of prices on the batch. Choose by score - b, where from b = 0

        a_i = max(0, the (K + 1)-th largest of s_ik - b_k)          what a token can get elsewhere
        b_k = max(0, the (q_k + 1)-th largest of s_ik - a_i)        what the first token without a place would pay

    This is a descent on the dual of the program with loads of *at most* q_k: liked experts become
    dearer, the others stay at
    0. Prices rise slowly where scores lie far above 0, as those of sigmoids do: more rounds help.
       Scores must not be negative.

    Not causal: while training, a token's experts depend on later tokens of the batch. In evaluation
    each token takes its K highest scores.

    Args:
        num_experts: E.
        top_k: K.
        rounds: how often both prices are set.
        target: weights of the experts' target loads; equal by default.
    """

    def __init__(
        self, num_experts: int, top_k: int, *, rounds: int = 8, target: Weights = None
    ) -> None:
        super().__init__(num_experts, top_k, target=target)
        if rounds < 1:
            raise ValueError(f"bip needs at least 1 round, not {rounds}")
        self.rounds = rounds
        self._greatest_share = float((self.target.weights / self.target.weights.sum()).max())

    def plan(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """score - b, (T, E)."""
        if not len(scores) or self.top_k == self.num_experts:
            return scores
        by_expert = scores.t().contiguous()
        if mask is not None:
            by_expert = by_expert.masked_fill(mask, -torch.inf)
        places, _ = self._places(len(scores) if mask is None else (~mask).sum(), scores.device)
        # places are on the device; more than this there cannot be
        reach = min(len(scores), int(self._greatest_share * len(scores) * self.top_k) + 2)
        prices = torch.zeros_like(by_expert[:, 0])
        for _ in range(self.rounds):
            elsewhere = (scores - prices).topk(self.top_k + 1, dim=1).values[:, -1].clamp_min(0)
            offers = (by_expert - elsewhere).topk(reach, dim=1).values
            first_without = offers.gather(1, places.clamp_max(reach - 1).unsqueeze(1)).squeeze(1)
            prices = torch.where(places < reach, first_without.clamp_min(0), 0.0)
        return scores - prices

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rounds={self.rounds}"
