"""ExpertChoice: each expert takes the tokens that score it highest."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.balancing.batch.solver import BatchSolver, refuse_groups
from equipoise.routing import Groups, Routing, route
from equipoise.routing.checks import require_finite, scores_are_checked
from equipoise.routing.route import check_shapes


class ExpertChoice(BatchSolver):
    """Expert choice (Zhou et al. 2022): each expert takes the tokens that score it highest, as many
    as it has places.

    Loads are exact by construction. A token gets as many experts as want it: none, or all E. So
    `Routing.experts` is (T, M), with M the most that any token got and at least 1. Places without
    an expert hold `num_experts`, which is no expert's number, and a gate of 0; they come last,
    after the experts by descending score. There is no runner-up: every margin is infinite. Where
    loads are not whole, the places left over go to the experts whose next token scores highest.

    Not causal, and here that is serious: whether a token is taken depends on all later tokens that
    compete for the same place, and a decoder learns to read the future from it, so that its
    training loss is better than it can be in use. In evaluation each token takes its K highest
    scores, and `experts` is (T, K).

    M is read from the device: it makes a GPU wait once, and cannot be compiled.
    """

    takes_top_k = False

    def route(
        self,
        scores: Tensor,
        *,
        groups: Groups | tuple[int, int] | None = None,
        mask: Tensor | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
    ) -> Routing:
        """As `equipoise.route`, but with as many experts per token as chose it. Padding is chosen
        by none.
        """
        refuse_groups(groups, "expert_choice")
        if not self.training:
            return super().route(scores, mask=mask, renormalize=renormalize, scale=scale)
        check_shapes(scores, self.top_k, None, None, mask)
        flat = self.adjust(scores).flatten(0, -2)
        if scores_are_checked(scores):
            require_finite(flat, "scores")
        taken = self._take(flat, None if mask is None else mask.flatten())
        # places that no expert takes: below all others in the choice, 0 among the gates
        low = flat.amin() - 1 if flat.numel() else 0.0
        routing = route(
            scores.flatten(0, -2).masked_fill(~taken, 0.0),
            _most_taken(taken),
            choose_by=torch.where(taken, flat, low),
            mask=None if mask is None else mask.flatten(),
            renormalize=renormalize,
            scale=scale,
        )
        experts = routing.experts.masked_fill(~taken.gather(1, routing.experts), self.num_experts)
        margin = torch.full(
            routing.experts.shape[:1], torch.inf, dtype=torch.float32, device=scores.device
        )
        return routing._replace(experts=experts, loads=taken.sum(0), margin=margin)

    def _take(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """(T, E) bool: the tokens that each expert takes."""
        tokens = (
            torch.arange(len(scores), device=scores.device)
            if mask is None
            else (~mask).nonzero().squeeze(1)
        )
        ordered = scores[tokens].t().sort(dim=1, descending=True, stable=True)
        places = self._share_out(ordered.values)
        within = torch.arange(len(tokens), device=scores.device) < places.unsqueeze(1)
        best = torch.zeros_like(within).scatter_(1, ordered.indices, within)
        taken = torch.zeros_like(scores, dtype=torch.bool)
        taken[tokens] = best.t()
        return taken

    def _share_out(self, ordered: Tensor) -> Tensor:
        """(E,): places of each expert, given its tokens' scores (E, T) in descending order."""
        num_tokens = ordered.shape[1]
        least, most = self.places(num_tokens, ordered.device)
        left = int(num_tokens * self.top_k - least.sum())
        if left == 0:
            return least
        following = ordered.gather(1, least.clamp_max(num_tokens - 1).unsqueeze(1)).squeeze(1)
        following = following.masked_fill(most == least, -torch.inf)
        return least.index_add(0, following.topk(left).indices, torch.ones_like(least)[:left])


def _most_taken(taken: Tensor) -> int:
    """M, the most experts that any token got; at least 1. Waits for the device."""
    return max(1, int(taken.sum(1).amax())) if len(taken) else 1
