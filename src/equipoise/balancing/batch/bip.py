"""BIP: prices found on the batch itself in a few rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.batch.plan import PlanSolver
from equipoise.balancing.target import Weights


class BIP(PlanSolver):
    """BIP (Sun 2025): a few rounds of prices on the batch. Choose by score - b, where from b = 0

        a_i = max(0, the (K + 1)-th largest of s_ik - b_k)      what a token can get elsewhere
        b_k = max(0, the (q_k + 1)-th largest of s_ik - a_i)    what the first token without a
                                                                place would pay

    This is a descent on the dual of the program with loads of *at most* q_k: popular experts become
    dearer, the others stay at 0. Prices rise slowly where scores lie far above 0, as those of
    sigmoids do: more rounds help. Scores must not be negative.

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
        weights = self.target.first_value("weights")
        self._greatest_share = float((weights / weights.sum()).max())

    def plan(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """score - b, (T, E)."""
        if not len(scores) or self.top_k == self.num_experts:
            return scores
        by_expert = scores.t().contiguous()
        if mask is not None:
            by_expert = by_expert.masked_fill(mask, -torch.inf)
        places, _ = self.places(len(scores) if mask is None else (~mask).sum(), scores.device)
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
