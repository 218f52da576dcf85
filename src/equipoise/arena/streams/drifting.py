"""The stream of `equipoise demo`: Gaussian logits around a popularity that drifts.

It is older than synthetic.py, and is kept as it was drawn then: one generator for the whole stream,
so that batch n follows from all batches before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from equipoise.arena.streams.stream import Batch, Stream


@dataclass(frozen=True)
class DriftingLogits(Stream):
    """Softmax scores of Gaussian logits whose experts are unequally popular, and ever differently.

    Logits are N(mu_k, 1), independent between tokens; mu starts as `skew` N(0, 1) and takes a step
    of `drift` N(0, 1) before every batch.
    """

    name: str = field(default="drifting", kw_only=True)
    num_tokens: int = 16_384
    num_experts: int = 64
    top_k: int = field(default=6, kw_only=True)
    steps: int = 150
    skew: float = 0.7
    drift: float = 0.0
    swap_at: int | None = None
    """the step at which a much and a little popular expert change places"""
    seed: int = 0

    def batch(self, step: int) -> Batch:
        if not 0 <= step < self.steps:
            raise IndexError(f"{self.name} has steps 0 to {self.steps - 1}, not {step}")
        return Batch(_walk_of(self).scores_at(step))

    def draw_batches(self) -> Iterator[Tensor]:
        """Scores (T, E), float32, one batch after another: the same ones every time."""
        rng = torch.Generator().manual_seed(self.seed)
        popularity = self.skew * torch.randn(self.num_experts, generator=rng)
        for step in range(self.steps):
            popularity = popularity + self.drift * torch.randn(self.num_experts, generator=rng)
            if step == self.swap_at:
                popularity = _swap_experts(popularity)
            logits = torch.randn(self.num_tokens, self.num_experts, generator=rng) + popularity
            yield logits.softmax(-1)


class _Walk:
    """A place in the stream: batches in order cost one draw each, a step back starts over."""

    def __init__(self, stream: DriftingLogits) -> None:
        self.stream = stream
        self._start_over()

    def _start_over(self) -> None:
        self.step = -1
        self.batches = self.stream.draw_batches()

    def scores_at(self, step: int) -> Tensor:
        if step < self.step:
            self._start_over()
        while self.step < step:
            self.scores = next(self.batches)
            self.step += 1
        return self.scores


@lru_cache(maxsize=2)
def _walk_of(stream: DriftingLogits) -> _Walk:
    return _Walk(stream)


def _swap_experts(popularity: Tensor) -> Tensor:
    """The expert a tenth from the bottom and the one a tenth from the top change places."""
    order, tenth = popularity.argsort(), len(popularity) // 10
    few, many = order[tenth], order[-1 - tenth]
    changed = popularity.clone()
    changed[few], changed[many] = popularity[many], popularity[few]
    return changed
