"""Synthetic streams: what a law draws for each token, around what each expert is liked.

    Synthetic(name="drift", likes=(Skew(0.7), Drift(0.02)), law="gaussian", num_tokens=4096,
    num_experts=64, top_k=6, steps=100)

The likes of the experts are a sum of parts, each a function of the step: a skew that stays, a
random walk, two experts that change places, one that dies, topics that come round. A law draws
tokens around them:

    gaussian   logits N(like_k, 1), then softmax or sigmoid
    heavy      logits like_k + t/2, t of Student's law with two degrees of freedom (no variance), then softmax or sigmoid
    uniform    scores U^exp(-like_k): uniform on [0, 1] where the like is 0
    beta       scores Beta(2 exp(like_k), 4)

Tokens of a sequence may have a taste in common, and sequences may end in padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.arena.streams.stream import Batch, Stream
from equipoise.routing import score_function

LAWS = ("gaussian", "heavy", "uniform", "beta")
_TOKENS, _TASTES, _LENGTHS, _SKEW, _DRIFT, _TOPICS = range(6)  # what the dice are thrown for


@dataclass(frozen=True)
class Skew:
    """Some experts are liked more than others: `size` N(0, 1)."""

    size: float = 0.7

    def __call__(self, step: int, num_experts: int, seed: int) -> np.ndarray:
        return self.size * _dice(seed, _SKEW).standard_normal(num_experts)


@dataclass(frozen=True)
class Drift:
    """Likes wander: a step of `rate` N(0, 1) before every batch but the first."""

    rate: float

    def __call__(self, step: int, num_experts: int, seed: int) -> np.ndarray:
        return self.rate * _dice(seed, _DRIFT).standard_normal((step, num_experts)).sum(0)


@dataclass(frozen=True)
class Swap:
    """At step `at`, a much liked and a little liked expert change places: those a tenth from the
    top and the bottom.
    """

    at: int
    of: Skew = Skew()

    def __call__(self, step: int, num_experts: int, seed: int) -> np.ndarray:
        moved = np.zeros(num_experts)
        if step >= self.at:
            likes = self.of(0, num_experts, seed)
            order, tenth = np.argsort(likes), num_experts // 10
            few, many = order[tenth], order[-1 - tenth]
            moved[few], moved[many] = likes[many] - likes[few], likes[few] - likes[many]
        return moved


@dataclass(frozen=True)
class Dying:
    """One expert is liked less and less: its logit falls by `rate` a step."""

    rate: float = 0.05
    expert: int = 0

    def __call__(self, step: int, num_experts: int, seed: int) -> np.ndarray:
        fallen = np.zeros(num_experts)
        fallen[self.expert] = -self.rate * step
        return fallen


@dataclass(frozen=True)
class Topics:
    """The data's mix comes round: likes turn in a random plane once in `period` steps."""

    period: int = 25
    size: float = 0.3

    def __call__(self, step: int, num_experts: int, seed: int) -> np.ndarray:
        one, other = _dice(seed, _TOPICS).standard_normal((2, num_experts))
        angle = 2 * math.pi * step / self.period
        return self.size * (math.cos(angle) * one + math.sin(angle) * other)


Likes = Skew | Drift | Swap | Dying | Topics


@dataclass(frozen=True, kw_only=True)
class Synthetic(Stream):
    """A stream made from a law and likes."""

    likes: tuple[Likes, ...] = (Skew(),)
    law: str = "gaussian"
    score: str = "softmax"
    """from logits to scores; uniform and beta draw scores themselves"""
    taste: float = 0.0
    """tokens of a sequence share `taste` N(0, 1) per expert; `block` is then the length of a
    sequence
    """
    padding: float = 0.0
    """the share of tokens that are padding, at the ends of sequences, all alike and all after one
    expert
    """
    seed: int = 0

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise ValueError(f"no law {self.law!r}: there are {', '.join(LAWS)}")
        score_function(self.score)
        if (self.taste or self.padding) and (self.block is None or self.num_tokens % self.block):
            raise ValueError(
                f"tastes and padding need sequences: {self.num_tokens} tokens do not divide into "
                f"blocks of {self.block}"
            )
        if not 0 <= self.padding < 0.5:
            raise ValueError(f"padding is a share of the tokens, below a half, not {self.padding}")

    def likes_at(self, step: int) -> np.ndarray:
        """(E,): how much each expert is liked."""
        return sum(
            (part(step, self.num_experts, self.seed) for part in self.likes),
            start=np.zeros(self.num_experts),
        )

    def batch(self, step: int) -> Batch:
        if not 0 <= step < self.steps:
            raise IndexError(f"{self.name} has steps 0 to {self.steps - 1}, not {step}")
        centre = torch.from_numpy(self.likes_at(step)).float().expand(self.num_tokens, -1)
        if self.taste:
            centre = centre + self._tastes(step)
        scores = self._draw(centre, _dice(self.seed, _TOKENS, step))
        return self._padded(scores, step) if self.padding else Batch(scores)

    def _draw(self, centre: Tensor, dice: np.random.Generator) -> Tensor:
        shape = tuple(centre.shape)
        if self.law == "uniform":
            return torch.from_numpy(dice.random(shape, np.float32)).pow(torch.exp(-centre))
        if self.law == "beta":
            return torch.from_numpy(
                dice.beta(2 * np.exp(centre.double().numpy()), 4.0, shape)
            ).float()
        if self.law == "heavy":
            u = torch.from_numpy(dice.random(shape, np.float32)).clamp(1e-7, 1 - 1e-7)
            drawn = (
                0.5 * (2 * u - 1) / (2 * u * (1 - u)).sqrt()
            )  # the quantile function of t with two degrees of freedom
        else:
            drawn = torch.from_numpy(dice.standard_normal(shape, np.float32))
        return score_function(self.score)(drawn + centre)

    def _tastes(self, step: int) -> Tensor:
        assert self.block is not None
        dice = _dice(self.seed, _TASTES, step)
        tastes = dice.standard_normal((self.num_tokens // self.block, self.num_experts), np.float32)
        return self.taste * torch.from_numpy(tastes).repeat_interleave(self.block, 0)

    def _padded(self, scores: Tensor, step: int) -> Batch:
        """Sequences end after a share of 1 - 2 padding to 1 of their length; the rest all want
        expert 0.
        """
        assert self.block is not None
        share = 1 - 2 * self.padding * _dice(self.seed, _LENGTHS, step).random(
            self.num_tokens // self.block
        )
        lengths = torch.from_numpy(np.ceil(share * self.block)).long()
        mask = (torch.arange(self.block) >= lengths.unsqueeze(1)).flatten()
        alike = score_function(self.score)(4.0 * (torch.arange(self.num_experts) == 0).float())
        return Batch(torch.where(mask.unsqueeze(1), alike, scores), mask)


def _dice(seed: int, *purpose: int) -> np.random.Generator:
    """Dice for one purpose: what is thrown for it depends on nothing else that is thrown."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *purpose])))
