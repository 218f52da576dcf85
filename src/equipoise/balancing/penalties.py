"""Penalties: what is added to the loss, so that gradients push the router towards balance.

A penalty can be all there is (`balancer("aux", ...)`), or be carried by any other balancer
(`balancer("deepseek", ...).carry(AuxiliaryLoss(1e-4, "sequence"))`, as DeepSeek-V3 does).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from equipoise.balancing.precise import Precise
from equipoise.balancing.target import Weights
from equipoise.routing import Routing, Tally

SCOPES = ("batch", "sequence", "global")


class Penalty(Precise, ABC):
    """A term of the loss. Pure, like all of a forward; only see() changes its state."""

    def build(self, num_experts: int) -> None:
        """Make the buffers this penalty needs; called once, by the balancer that carries it."""

    @abstractmethod
    def forward(
        self, scores: Tensor, routing: Routing, logits: Tensor | None, sequences: Tensor | None
    ) -> Tensor:
        """The term, a float32 scalar."""

    def see(self, tally: Tally) -> None:
        """Learn from a whole batch, over all micro-batches and ranks. Called once per update."""


class AuxiliaryLoss(Penalty):
    """coefficient * sum_k f_k P_k: the auxiliary loss of Switch and GShard.

        f_k = load_k / target_k        how often an expert was chosen; no gradient
        P_k = mean over tokens of scores_ik / sum_l scores_il

    Perfect balance gives the coefficient itself. The scope says over which tokens both are taken:

        "batch"     this forward's tokens
        "sequence"  each sequence apart, then the mean over sequences (DeepSeek-V3)
        "global"    all tokens of an optimizer step, over micro-batches and ranks (Qwen3)

    A product of two means does not add up over micro-batches. For "global" f is therefore taken
    from the loads of the *last* update, which were summed over everything: with f fixed the penalty
    is linear in P, so its mean over micro-batches and ranks of equal size is that of the whole
    batch, and forwards stay pure. Before the first update f = 1.
    """

    frequencies: Tensor
    weights: Tensor

    def __init__(
        self,
        coefficient: float,
        scope: str = "batch",
        target: Weights = None,
    ) -> None:
        super().__init__()
        if scope not in SCOPES:
            raise ValueError(f"scope must be one of {', '.join(SCOPES)}, not {scope!r}")
        self.coefficient = _checked_coefficient(coefficient, "aux")
        self.scope = scope
        self._target = target

    def build(self, num_experts: int) -> None:
        weights = torch.as_tensor(
            [1.0] * num_experts if self._target is None else self._target,
            dtype=torch.float32,
            device="cpu",
        ).detach()
        self.keep_buffer("weights", weights / weights.mean(), (num_experts,), persistent=False)
        if self.scope == "global":
            self.keep_buffer("frequencies", 1.0, (num_experts,))

    def forward(
        self, scores: Tensor, routing: Routing, logits: Tensor | None, sequences: Tensor | None
    ) -> Tensor:
        share = scores.float() / scores.float().sum(-1, keepdim=True).clamp_min(
            torch.finfo(torch.float32).tiny
        )
        flat = share.flatten(0, -2)
        if self.scope == "sequence":
            return self.coefficient * self._by_sequence(
                flat, routing, *_sequence_of_tokens(scores, sequences)
            )
        mean = _mean_over(flat, routing.mask)
        frequencies = (
            self.frequencies.to(mean.device)
            if self.scope == "global"
            else self._relative_frequencies(routing.loads)
        )
        return self.coefficient * (frequencies * mean).sum()

    def see(self, tally: Tally) -> None:
        if self.scope == "global":
            some = tally.loads.sum() > 0
            self.frequencies.copy_(
                torch.where(some, self._relative_frequencies(tally.loads), self.frequencies)
            )

    def _relative_frequencies(self, loads: Tensor) -> Tensor:
        """f (..., E): 1 where loads are as they should be."""
        return loads / (
            loads.sum(-1, keepdim=True).clamp_min(1).float()
            / loads.shape[-1]
            * self.weights.to(loads.device)
        )

    def _by_sequence(
        self, share: Tensor, routing: Routing, sequences: Tensor, number: int
    ) -> Tensor:
        """The mean over sequences that have a token which is not padding."""
        counted = torch.ones_like(sequences) if routing.mask is None else (~routing.mask).long()
        num_experts = share.shape[1]
        lengths = torch.zeros(number, dtype=torch.int64, device=share.device).scatter_add_(
            0, sequences, counted
        )
        place = (
            sequences.unsqueeze(1) * num_experts + routing.experts.clamp_max(num_experts - 1)
        ).flatten()
        # expert choice: the number E stands for no expert
        each = (counted.unsqueeze(1) * (routing.experts < num_experts)).flatten()
        loads = torch.zeros(
            number * num_experts, dtype=torch.int64, device=share.device
        ).scatter_add_(0, place, each)
        sums = share.new_zeros(number, num_experts).index_add(
            0, sequences, share * counted.unsqueeze(1)
        )
        means = sums / lengths.clamp_min(1).unsqueeze(1)
        values = (self._relative_frequencies(loads.view(number, num_experts)) * means).sum(1)
        return values.sum() / (lengths > 0).sum().clamp_min(1)

    def extra_repr(self) -> str:
        return f"coefficient={self.coefficient}, scope={self.scope!r}"


class ZLoss(Penalty):
    """coefficient * mean over tokens of (logsumexp_k logits_ik)^2 (ST-MoE).

    It keeps logits small, and does not balance.
    """

    def __init__(self, coefficient: float) -> None:
        super().__init__()
        self.coefficient = _checked_coefficient(coefficient, "z_loss")

    def forward(
        self, scores: Tensor, routing: Routing, logits: Tensor | None, sequences: Tensor | None
    ) -> Tensor:
        if logits is None:
            raise ValueError(
                "z_loss is on the router's logits: call penalty(scores, routing, logits=...)"
            )
        squares = logits.float().logsumexp(-1).square().flatten().unsqueeze(1)
        return self.coefficient * _mean_over(squares, routing.mask).sum()

    def extra_repr(self) -> str:
        return f"coefficient={self.coefficient}"


def _checked_coefficient(value: float, name: str) -> float:
    """The same, if it is one: YAML reads 1e-3 as text, NaN would spoil the loss, and a negative one
    would unbalance.
    """
    if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(
            f"the coefficient of {name} must be a finite number, 0 or more, not {value!r}"
        )
    return value


def _mean_over(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over tokens that are not padding, (T, ...) -> (...); 0 where there is none."""
    if mask is None:
        return values.sum(0) / max(len(values), 1)
    real = (~mask).to(values.dtype)
    return (values * real.unsqueeze(1)).sum(0) / real.sum().clamp_min(1)


def _sequence_of_tokens(scores: Tensor, sequences: Tensor | None) -> tuple[Tensor, int]:
    """The sequence of each token, (T,), and how many there are.

    To count sequences that were given by number makes a GPU wait.
    """
    if sequences is not None:
        if sequences.shape != scores.shape[:-1]:
            raise ValueError(
                f"sequences has shape {tuple(sequences.shape)}, the tokens "
                f"{tuple(scores.shape[:-1])}"
            )
        flat = sequences.flatten().long()
        return flat, int(flat.max()) + 1 if flat.numel() else 0
    if scores.dim() < 3:
        raise ValueError(
            "a penalty per sequence must know the sequences: give scores of shape (batch, length, "
            "experts), or pass sequences="
        )
    number = scores.shape[0]
    each = scores[..., 0].numel() // max(number, 1)
    return torch.arange(number, device=scores.device).repeat_interleave(each), number
