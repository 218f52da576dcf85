"""Synthetic streams: what a law draws for each token, around how popular each expert is.

    Synthetic(
        name="drift", popularity=(Skew(0.7), Drift(0.02)), law="gaussian",
        num_tokens=4096, num_experts=64, top_k=6, steps=100,
    )

The popularity of the experts is a sum of parts, each a function of the step: a skew that stays, a
random walk, two experts that change places, one that dies, topics that return. With m_k the
popularity of expert k, a law draws tokens around it:

    gaussian   logits N(m_k, 1), then softmax or sigmoid
    heavy      logits m_k + t/2, t of Student's law with two degrees of freedom (no variance), then
               softmax or sigmoid
    uniform    scores U^exp(-m_k): uniform on [0, 1] where m_k is 0
    beta       scores Beta(2 exp(m_k), 4)

Tokens of a sequence may share an offset, and sequences may end in padding.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.arena.streams.stream import Batch, Stream
from equipoise.routing import score_function

LAWS = ("gaussian", "heavy", "uniform", "beta")
# what random numbers are drawn for; each purpose has a generator of its own
_TOKENS, _OFFSETS, _LENGTHS, _SKEW, _DRIFT, _TOPICS = range(6)


@dataclass(frozen=True)
class Skew:
    """Some experts are more popular than others: `size` N(0, 1)."""

    size: float = 0.7

    def __call__(self, step: int, num_experts: int, seed: int) -> np.ndarray:
        return self.size * _rng_for(seed, _SKEW).standard_normal(num_experts)


@dataclass(frozen=True)
class Drift:
    """Popularity wanders: a step of `rate` N(0, 1) before every batch but the first."""

    rate: float

    def __call__(self, step: int, num_experts: int, seed: int) -> np.ndarray:
        return self.rate * _rng_for(seed, _DRIFT).standard_normal((step, num_experts)).sum(0)


@dataclass(frozen=True)
class Swap:
    """At step `at` two experts change places: those a tenth from the top and from the bottom."""

    at: int
    of: Skew = Skew()

    def __call__(self, step: int, num_experts: int, seed: int) -> np.ndarray:
        moved = np.zeros(num_experts)
        if step >= self.at:
            popularity = self.of(0, num_experts, seed)
            order, tenth = np.argsort(popularity), num_experts // 10
            few, many = order[tenth], order[-1 - tenth]
            moved[few] = popularity[many] - popularity[few]
            moved[many] = popularity[few] - popularity[many]
        return moved


@dataclass(frozen=True)
class Dying:
    """One expert is ever less popular: its logit falls by `rate` a step."""

    rate: float = 0.05
    expert: int = 0

    def __call__(self, step: int, num_experts: int, seed: int) -> np.ndarray:
        fallen = np.zeros(num_experts)
        fallen[self.expert] = -self.rate * step
        return fallen


@dataclass(frozen=True)
class Topics:
    """The data's mix returns: popularity turns in a random plane once in `period` steps."""

    period: int = 25
    size: float = 0.3

    def __call__(self, step: int, num_experts: int, seed: int) -> np.ndarray:
        one, other = _rng_for(seed, _TOPICS).standard_normal((2, num_experts))
        angle = 2 * math.pi * step / self.period
        return self.size * (math.cos(angle) * one + math.sin(angle) * other)


Popularity = Skew | Drift | Swap | Dying | Topics
"""(step, num_experts, seed) -> (E,): added to the logits of all tokens"""


@dataclass(frozen=True, kw_only=True)
class Synthetic(Stream):
    """A stream made from a law and the experts' popularity."""

    popularity: tuple[Popularity, ...] = (Skew(),)
    law: str = "gaussian"
    score: str = "softmax"
    """from logits to scores; uniform and beta draw scores themselves"""
    sequence_offset: float = 0.0
    """tokens of a sequence share `sequence_offset` N(0, 1) per expert; `block` is then the length
    of a sequence
    """
    padding: float = 0.0
    """the share of tokens that are padding, at the ends of sequences; all are alike, and their
    greatest score is that of expert 0
    """
    seed: int = 0

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise ValueError(f"no law {self.law!r}: there are {', '.join(LAWS)}")
        score_function(self.score)
        by_sequence = self.sequence_offset or self.padding
        if by_sequence and (self.block is None or self.num_tokens % self.block):
            raise ValueError(
                f"sequence_offset and padding need sequences: {self.num_tokens} tokens do not "
                f"divide into blocks of {self.block}"
            )
        if not 0 <= self.padding < 0.5:
            raise ValueError(f"padding is a share of the tokens, below a half, not {self.padding}")

    @property
    def identity(self) -> str:
        """With the names that fields had in version 0.1, so that its cells are still found."""
        fields = asdict(self)
        fields["likes"], fields["taste"] = fields.pop("popularity"), fields.pop("sequence_offset")
        return json.dumps([type(self).__name__, fields], sort_keys=True, default=str)

    def popularity_at(self, step: int) -> np.ndarray:
        """(E,): how popular each expert is."""
        return sum(
            (part(step, self.num_experts, self.seed) for part in self.popularity),
            start=np.zeros(self.num_experts),
        )

    def batch(self, step: int) -> Batch:
        if not 0 <= step < self.steps:
            raise IndexError(f"{self.name} has steps 0 to {self.steps - 1}, not {step}")
        centre = torch.from_numpy(self.popularity_at(step)).float().expand(self.num_tokens, -1)
        if self.sequence_offset:
            centre = centre + self._sequence_offsets(step)
        scores = self._draw(centre, self._tokens_rng(step))
        return self._padded(scores, step) if self.padding else Batch(scores)

    def _tokens_rng(self, step: int) -> np.random.Generator:
        return _rng_for(self.seed, _TOKENS, step)

    def _draw(self, centre: Tensor, rng: np.random.Generator) -> Tensor:
        shape = tuple(centre.shape)
        if self.law == "uniform":
            return torch.from_numpy(rng.random(shape, np.float32)).pow(torch.exp(-centre))
        if self.law == "beta":
            return torch.from_numpy(
                rng.beta(2 * np.exp(centre.double().numpy()), 4.0, shape)
            ).float()
        if self.law == "heavy":
            u = torch.from_numpy(rng.random(shape, np.float32)).clamp(1e-7, 1 - 1e-7)
            # the quantile function of t with two degrees of freedom
            drawn = 0.5 * (2 * u - 1) / (2 * u * (1 - u)).sqrt()
        else:
            drawn = torch.from_numpy(rng.standard_normal(shape, np.float32))
        return score_function(self.score)(drawn + centre)

    def _sequence_offsets(self, step: int) -> Tensor:
        """(T, E): what the tokens of each sequence have in common."""
        assert self.block is not None
        rng = _rng_for(self.seed, _OFFSETS, step)
        drawn = rng.standard_normal((self.num_tokens // self.block, self.num_experts), np.float32)
        return self.sequence_offset * torch.from_numpy(drawn).repeat_interleave(self.block, 0)

    def _padded(self, scores: Tensor, step: int) -> Batch:
        """Sequences end after 1 - 2 padding to 1 of their length; the rest is padding."""
        assert self.block is not None
        share = 1 - 2 * self.padding * _rng_for(self.seed, _LENGTHS, step).random(
            self.num_tokens // self.block
        )
        lengths = torch.from_numpy(np.ceil(share * self.block)).long()
        mask = (torch.arange(self.block) >= lengths.unsqueeze(1)).flatten()
        alike = score_function(self.score)(4.0 * (torch.arange(self.num_experts) == 0).float())
        return Batch(torch.where(mask.unsqueeze(1), alike, scores), mask)


def _rng_for(seed: int, *purpose: int) -> np.random.Generator:
    """A generator for one purpose: what it draws depends on nothing else that is drawn."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *purpose])))


class PooledTokens(Synthetic):
    """The same tokens in every batch, while the experts' popularity moves below them: a pool that
    stands for all tokens there are. A batch of any size is so many of them, drawn with replacement.

    Without sequences and padding, whose random numbers are those of a step.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_offset or self.padding:
            raise ValueError(
                f"{self.name} has sequences or padding, which a pool of tokens has not: choose "
                "another stream"
            )

    def _tokens_rng(self, step: int) -> np.random.Generator:
        return _rng_for(self.seed, _TOKENS)
