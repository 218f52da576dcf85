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
POTENTIALS = ("entropy", "euclidean")
# a share is counted as three digits of nine bits, so that sums over 2^22 tokens fit an int32
_DIGITS, _BITS = 3, 9
_UNITS = 2.0 ** (_DIGITS * _BITS)


class Penalty(Precise, ABC):
    """A term of the loss. Pure, like all of a forward; only see() changes its state."""

    def build(self, num_experts: int) -> None:
        """Make the buffers this penalty needs; called once, by the balancer that carries it."""

    @abstractmethod
    def forward(
        self, scores: Tensor, routing: Routing, logits: Tensor | None, sequences: Tensor | None
    ) -> Tensor:
        """The term, a float32 scalar."""

    def count(self, scores: Tensor, routing: Routing) -> dict[str, Tensor]:
        """Whole numbers about a forward that add up over tokens, for see(); part of its tally."""
        return {}

    def part_shapes(self, num_experts: int) -> dict[str, tuple[int, ...]]:
        """Shapes of what count() returns, by name, so that another rule's tally is refused."""
        return {}

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
        self.keep_buffer(
            "weights",
            _relative_weights(self._target, num_experts),
            (num_experts,),
            persistent=False,
        )
        if self.scope == "global":
            self.keep_buffer("frequencies", 1.0, (num_experts,))

    def forward(
        self, scores: Tensor, routing: Routing, logits: Tensor | None, sequences: Tensor | None
    ) -> Tensor:
        flat = _shares_of_scores(scores.float()).flatten(0, -2)
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


class PhiLoss(Penalty):
    """coefficient * <p, grad phi(m)>: phi-balancing (arXiv 2605.15403).

        p_k = mean over tokens of scores_ik / sum_l scores_il       of this forward; has a gradient
        m <- (1 - eta) m + eta p                                    after every step; has none

    It descends phi of the average routing, a strictly convex function that is least where all are
    equal, and not of a few tokens' routing. With t_k the target share of an expert, 1 / E unless
    weights are given, and e_k = E t_k:

        "entropy"    phi(m) = sum_k m_k log(m_k / t_k)       grad = log(m / t) + 1
        "euclidean"  phi(m) = sum_k m_k^2 / (2 e_k)          grad = m / e

    The paper's log m + 1 differs by log t, which is a constant where targets are equal and then
    has no gradient; so balance costs the coefficient itself, and coefficient / E for "euclidean".

    The penalty is linear in p, since m stands still between two updates: its mean over
    micro-batches and ranks of equal size is that of the whole batch. What m learns from is counted
    in the tally, in whole multiples of 2^-27, so that it adds up exactly. m begins at t.
    """

    mean_routing: Tensor
    shares: Tensor
    part = "soft_routing"
    """its name in the tally"""

    def __init__(
        self,
        coefficient: float,
        potential: str = "entropy",
        eta: float = 0.1,
        target: Weights = None,
    ) -> None:
        super().__init__()
        if potential not in POTENTIALS:
            raise ValueError(f"potential must be one of {', '.join(POTENTIALS)}, not {potential!r}")
        if not isinstance(eta, (int, float)) or not 0 < eta <= 1:
            raise ValueError(f"eta must be above 0 and at most 1, not {eta!r}")
        self.coefficient = _checked_coefficient(coefficient, "phi")
        self.potential, self.eta = potential, eta
        self._target = target

    def build(self, num_experts: int) -> None:
        shares = _relative_weights(self._target, num_experts) / num_experts
        self.keep_buffer("shares", shares, (num_experts,), persistent=False)
        self.keep_buffer("mean_routing", shares, (num_experts,))

    def forward(
        self, scores: Tensor, routing: Routing, logits: Tensor | None, sequences: Tensor | None
    ) -> Tensor:
        mean = _mean_over(_shares_of_scores(scores.float()).flatten(0, -2), routing.mask)
        return self.coefficient * (self.gradient().to(mean.device) * mean).sum()

    def gradient(self) -> Tensor:
        """grad phi(m), (E,)."""
        if self.potential == "euclidean":
            return self.mean_routing / (self.shares * len(self.shares))
        least = torch.finfo(torch.float32).tiny
        return (self.mean_routing / self.shares).clamp_min(least).log() + 1

    def count(self, scores: Tensor, routing: Routing) -> dict[str, Tensor]:
        share = _shares_of_scores(scores.detach().double()).flatten(0, -2)
        whole = (share * _UNITS).round().long()
        if routing.mask is not None:
            whole = whole.masked_fill(routing.mask.unsqueeze(1), 0)
        lower, base = whole, 1 << _BITS
        digits = []
        for _ in range(_DIGITS - 1):
            digits.append((lower % base).sum(0))
            lower = lower // base
        return {self.part: torch.stack([*digits, lower.sum(0)])}

    def part_shapes(self, num_experts: int) -> dict[str, tuple[int, ...]]:
        return {self.part: (_DIGITS, num_experts)}

    def see(self, tally: Tally) -> None:
        places = 2 ** (_BITS * torch.arange(_DIGITS, device=self.shares.device))
        counted = (tally.parts[self.part] * places.unsqueeze(1)).sum(0).double()
        whole = counted.sum()
        # a batch without tokens, or whose scores are all 0, says nothing
        mean = torch.where(whole > 0, counted / whole.clamp_min(1), self.mean_routing.double())
        self.mean_routing.copy_(self.mean_routing.double().lerp(mean, self.eta))

    def extra_repr(self) -> str:
        return f"coefficient={self.coefficient}, potential={self.potential!r}, eta={self.eta}"


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


def _relative_weights(target: Weights, num_experts: int) -> Tensor:
    """(E,) float32 on the CPU: the target weights with a mean of 1."""
    chosen = [1.0] * num_experts if target is None else target
    weights = torch.as_tensor(chosen, dtype=torch.float32, device="cpu").detach()
    return weights / weights.mean()


def _shares_of_scores(scores: Tensor) -> Tensor:
    """(..., E): each score as a share of its token's sum; 0 where all of them are 0."""
    return scores / scores.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)


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
