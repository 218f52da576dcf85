"""Matching: balancers that look at the whole batch, and solve its assignment problem instead of
learning a shift.

A shift is learnt from batches that are past, and leaves what chance does to the next one. With all
tokens at hand one can do
better: choose for all of them together, so that the loads of this very batch come out even. Four
    methods do so:

    Base          every load exact, and the greatest total score there is         auction.py
    ExpertChoice  every load exact, since experts choose their tokens; a token may get any number of experts
    Sinkhorn      nearly even: the K best of an entropic transport plan           transport.py
    BIP           more even than not: a few rounds of prices on the batch         transport.py

They keep no state, and update() only counts. What they pay: a token's experts depend on the other
tokens of its batch, later ones of its own sequence among them. Such a choice cannot be made while a
decoder generates, and it tells a token something of what follows (with ExpertChoice much). So in
evaluation all of them do without: each token takes its K highest scores.

Loads. T tokens that are not padding make T K choices; expert k should have T K w_k / sum(w) of
them, with w = 1 unless a target is given. Where that is not whole, it has the next whole number
below or above.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.batch.auction import assign
from equipoise.balancing.target import Target
from equipoise.routing import Groups, Routing, Tally, route
from equipoise.routing.checks import require_finite, scores_are_checked
from equipoise.routing.route import check_shapes

Weights = Sequence[float] | Tensor | None
_WHOLE = (
    1e-11  # relative: a target load this near to a whole number is one, and was missed by rounding
)


class Matching(Balancer, ABC):
    """What the methods that match a batch have in common: a target, and nothing to learn.

    Args:
        num_experts: E.
        top_k: K.
        target: weights of the experts' target loads; equal by default.
    """

    def __init__(self, num_experts: int, top_k: int, *, target: Weights = None) -> None:
        super().__init__(num_experts, top_k)
        self.target = Target(num_experts, top_k, target)

    @property
    def judges_tokens_apart(self) -> bool:
        return False

    def adjust(self, scores: Tensor) -> Tensor:
        """The scores themselves. What else is chosen by is known to `route` alone."""
        if scores.shape[-1] != self.num_experts:
            raise ValueError(
                f"scores are over {scores.shape[-1]} experts, the balancer over {self.num_experts}"
            )
        return scores.detach()

    def _move(self, tally: Tally) -> None:
        """Nothing is learnt: the next batch is solved for itself."""

    def _places(self, num_tokens: int | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """The least and the most tokens each expert may have, (E,) int64 each. No wait, even if the
        number is on a device.
        """
        weights = self.target.weights.to(device)
        loads = weights / weights.sum() * (num_tokens * self.top_k)
        whole = loads.round()
        loads = torch.where((loads - whole).abs() <= _WHOLE * whole, whole, loads)
        return loads.floor().long(), loads.ceil().long()


class Base(Matching):
    """BASE layers (Lewis et al. 2021), for any K: exact loads, and the greatest total score under
    them.

    Each token has K distinct experts. The total score lies at most (T K + E) * tolerance * (range
    of the scores) below the greatest that these loads allow; measured, less than 1e-5 of it. See
    auction.py.

    Not causal: while training, a token's experts depend on later tokens of the batch. In evaluation
    each token takes its K highest scores, and loads are what they are.

    It makes a GPU wait many times and cannot be compiled. On a CPU it takes about a second for
    16,384 tokens and 64 experts, and ten where tokens come in crowds that are nearly equal.

    Args:
        num_experts: E.
        top_k: K.
        tolerance: how much less than possible each choice may bring, as a fraction of the scores'
            range.
        target: weights of the experts' target loads; equal by default.
    """

    def __init__(
        self, num_experts: int, top_k: int, *, tolerance: float = 1e-4, target: Weights = None
    ) -> None:
        super().__init__(num_experts, top_k, target=target)
        if not tolerance > 0:
            raise ValueError(f"tolerance must be positive, not {tolerance}")
        self.tolerance = tolerance

    def route(
        self,
        scores: Tensor,
        *,
        groups: Groups | tuple[int, int] | None = None,
        mask: Tensor | None = None,
        renormalize: bool = False,
        scale: float = 1.0,
    ) -> Routing:
        """Experts by descending score; `runner_up` and `margin` are by score - price, 0 where a
        token gave way to others.

        Padding takes no place: it is routed by the prices of the others.
        """
        _refuse_groups(groups, "base")
        if not self.training:
            return super().route(scores, mask=mask, renormalize=renormalize, scale=scale)
        check_shapes(scores, self.top_k, None, None, mask)
        flat = self.adjust(scores).flatten(0, -2)
        require_finite(
            flat, "scores"
        )  # whatever the mode: it waits anyway, and with NaN would wait for ever
        held, prices = self._match(flat, None if mask is None else mask.flatten())
        chosen = flat.masked_fill(~held, -torch.inf).view(scores.shape)
        routing = route(
            scores, self.top_k, choose_by=chosen, mask=mask, renormalize=renormalize, scale=scale
        )
        return _with_margin(routing, flat.double() - prices, held)

    def _match(self, scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(T, E) bool: who has which experts; and the prices (E,)."""
        real = scores if mask is None else scores[~mask]
        found = assign(real, self.top_k, *self._places(len(real), scores.device), self.tolerance)
        if mask is None:
            return found
        best = (scores.double() - found.prices).topk(self.top_k, dim=1).indices
        held = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, best, True)
        held[~mask] = found.held
        return held, found.prices

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tolerance={self.tolerance:g}"


class ExpertChoice(Matching):
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
        _refuse_groups(groups, "expert_choice")
        if not self.training:
            return super().route(scores, mask=mask, renormalize=renormalize, scale=scale)
        check_shapes(scores, self.top_k, None, None, mask)
        flat = self.adjust(scores).flatten(0, -2)
        if scores_are_checked(scores):
            require_finite(flat, "scores")
        taken = self._take(flat, None if mask is None else mask.flatten())
        # nobody's places: below all others in the choice, 0 among the gates
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
        margin = torch.full(routing.experts.shape[:1], torch.inf, device=scores.device)
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
        least, most = self._places(num_tokens, ordered.device)
        left = int(num_tokens * self.top_k - least.sum())
        if left == 0:
            return least
        following = ordered.gather(1, least.clamp_max(num_tokens - 1).unsqueeze(1)).squeeze(1)
        following = following.masked_fill(most == least, -torch.inf)
        return least.index_add(0, following.topk(left).indices, torch.ones_like(least)[:left])


def _refuse_groups(groups: object, name: str) -> None:
    if groups is not None:
        raise ValueError(
            f"{name} matches all tokens with all experts and cannot keep to groups: route "
            "without groups, or choose a "
            "balancer that learns a shift"
        )


def _with_margin(routing: Routing, values: Tensor, held: Tensor) -> Routing:
    """The best expert that was not chosen, by `values`, and how far the least of the chosen lies
    above it.
    """
    if held.shape[1] == routing.experts.shape[1]:
        return routing  # all are chosen: there is no runner-up, as route() says
    best_free, runner_up = values.masked_fill(held, -torch.inf).max(1)
    margin = values.masked_fill(~held, torch.inf).amin(1) - best_free
    return routing._replace(runner_up=runner_up, margin=margin.clamp_min(0).to(routing.gates.dtype))


def _most_taken(taken: Tensor) -> int:
    return max(1, int(taken.sum(1).amax())) if len(taken) else 1
