"""Streams: batches of scores, one after another, the same for every balancer that sees them.

A Stream says how large it is and gives batch n when asked: batches follow from the seed and n
alone, so that anything may begin anywhere. synthetic.py makes some, recorded.py reads those of a
training.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Scores of the tokens of one step."""

    scores: Tensor
    """(T, E) float32"""
    mask: Tensor | None = None
    """(T,) bool, True for padding"""

    @property
    def tokens(self) -> Tensor:
        """(T', E): the scores without padding."""
        return self.scores if self.mask is None else self.scores[~self.mask]


@dataclass(frozen=True, kw_only=True)
class Stream(ABC):
    """Batches of scores, and how they are to be routed."""

    name: str
    num_tokens: int
    """T, in a batch, padding included"""
    num_experts: int
    top_k: int
    steps: int
    groups: tuple[int, int] | None = None
    """(number, keep) where a token may use only its best groups"""
    target: tuple[float, ...] | None = None
    """weights of the experts' loads; equal by default"""
    block: int | None = None
    """how many successive tokens belong together (a sequence); None: all are independent"""

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Batch number `step`, counted from 0: always the same one."""

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, range(self.steps))

    @property
    def identity(self) -> str:
        """All that its batches follow from, as text: the same identity has the same results."""
        return json.dumps([type(self).__name__, asdict(self)], sort_keys=True, default=str)


def sampling_floor(num_tokens: int, num_experts: int, top_k: int) -> float:
    """The imbalance that chance alone leaves when every expert is equally likely.

    A load is then binomial(T, K/E), and E|A - L| / L of a normal law with its variance is
    sqrt(2/pi (1 - K/E) / L). No rule can do better on new tokens. floor.py has the floor of streams
    with unequal targets or sequences.
    """
    load = top_k * num_tokens / num_experts
    return (2 / torch.pi * (1 - top_k / num_experts) / load) ** 0.5
