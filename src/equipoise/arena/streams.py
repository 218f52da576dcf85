"""Streams: batches of scores, one after another, the same for every balancer that meets them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DriftingLogits:
    """Softmax scores of Gaussian logits whose experts are liked unequally, and ever differently.

    Logits are N(mu_k, 1), independent between tokens; mu starts as `skew` N(0, 1) and takes a step of `drift` N(0, 1) before
    every batch.
    """

    num_tokens: int = 16_384
    num_experts: int = 64
    steps: int = 150
    skew: float = 0.7
    drift: float = 0.0
    swap_at: int | None = None
    """the step at which a much liked and a little liked expert change places"""
    seed: int = 0

    def __iter__(self) -> Iterator[Tensor]:
        """Batches of scores (T, E), float32: the same ones every time."""
        dice = torch.Generator().manual_seed(self.seed)
        likes = self.skew * torch.randn(self.num_experts, generator=dice)
        for step in range(self.steps):
            likes = likes + self.drift * torch.randn(self.num_experts, generator=dice)
            if step == self.swap_at:
                likes = _swapped(likes)
            yield (torch.randn(self.num_tokens, self.num_experts, generator=dice) + likes).softmax(-1)


def _swapped(likes: Tensor) -> Tensor:
    """The expert a tenth from the bottom and the one a tenth from the top change places."""
    order, tenth = likes.argsort(), len(likes) // 10
    few, many = order[tenth], order[-1 - tenth]
    changed = likes.clone()
    changed[few], changed[many] = likes[many], likes[few]
    return changed


def sampling_floor(num_tokens: int, num_experts: int, top_k: int) -> float:
    """The imbalance that chance alone leaves when every expert is equally likely: no rule can do better on fresh tokens.

    A load is then binomial(T, K/E), and E|A - L| / L of a normal with its variance is sqrt(2/pi (1 - K/E) / L).
    """
    load = top_k * num_tokens / num_experts
    return (2 / torch.pi * (1 - top_k / num_experts) / load) ** 0.5
