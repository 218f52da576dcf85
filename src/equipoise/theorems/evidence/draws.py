"""Evidence for the stochastic statements: batches drawn at one shift, beside the law they were
drawn from.

From a law, batches are drawn here. From a trace, a batch kept whole is cut into sub-batches, and
the law is the histogram of its own scores, expert by expert. That is the paper's model only if
experts are independent: a softmax gate's cannot be (its rows sum to 1, errata 13), and a sigmoid
gate's may not be. Both are looked at, and said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from equipoise.expected.dual import AtShift, Expected
from equipoise.expected.laws import Histogram
from equipoise.optimum.loop import Array, choose
from equipoise.theorems.verdict import require
from equipoise.trace import Record, Trace

SUB_BATCHES = 32
CORRELATED = (
    0.1  # above that, and above what chance does in the sample, experts are not called independent
)


@dataclass(frozen=True)
class Draws:
    """Loads (S, E) of S batches of `expected.num_tokens` tokens, all routed under one shift."""

    expected: Expected
    shift: Array
    loads: NDArray[np.int64]
    dependence: str = ""
    """what speaks against independent experts; nothing if empty"""
    number: int = 0

    @cached_property
    def point(self) -> AtShift:
        return self.expected.at(self.shift)

    def require_independence(self) -> None:
        """Hypothesis (sec. 5.2): scores are independent between experts."""
        require(not self.dependence, self.dependence)


Sampled = Expected | Draws | Trace | Iterable[Draws]


def draw(expected: Expected, shift: Array, batches: int, seed: int) -> Draws:
    """Batches of the law, routed."""
    dice = np.random.default_rng(seed)
    loads = [
        choose(expected.law.sample(dice, expected.num_tokens) + shift, expected.top_k).sum(0)
        for _ in range(batches)
    ]
    return Draws(expected, np.asarray(shift, np.float64), np.array(loads))


def draws_of(source: Sampled) -> Iterator[Draws]:
    """The draws in a source: of a trace, one for each batch kept whole; of a law, 400 batches at p
    = 0.
    """
    if isinstance(source, Draws):
        yield source
    elif isinstance(source, Expected):
        yield draw(source, np.zeros(source.law.num_experts), batches=400, seed=0)
    elif isinstance(source, Trace):
        for layer in range(len(source.layers)):
            for step in source.whole_steps(layer):
                yield draws_of_record(source.record(layer, step), source.top_k)
    else:
        yield from source


def draws_of_record(record: Record, top_k: int) -> Draws:
    """A whole batch as sub-batches of its own histogram's law."""
    scores, shift = record.scores.astype(np.float64), record.shift.astype(np.float64)
    tokens = len(scores) // SUB_BATCHES
    dependence = dependence_of(scores)
    if tokens == 0:
        dependence = f"{len(scores)} tokens are too few to cut into {SUB_BATCHES} sub-batches"
    if scores.min() <= 0 or scores.max() >= 1:
        dependence = (
            f"scores reach from {scores.min():.2g} to {scores.max():.2g}: the theory "
            "has them in (0, 1)"
        )
    chosen = choose(scores + shift, top_k)[: tokens * SUB_BATCHES]
    loads = chosen.reshape(SUB_BATCHES, tokens, shift.size).sum(1)
    law = Histogram.of(np.clip(scores, 0, 1))
    return Draws(
        Expected(law, top_k, max(tokens, 1), tolerance=1e-5), shift, loads, dependence, record.step
    )


def dependence_of(scores: Array) -> str:
    """What a batch's scores say against independent experts."""
    if np.ptp(scores.sum(1)) < 1e-3:
        return (
            "rows of scores sum to a constant: a softmax gate, whose experts cannot be independent"
        )
    if len(scores) < 3 or (scores.std(0) == 0).any():
        return "an expert's scores do not vary"
    above_diagonal = np.triu(np.atleast_2d(np.corrcoef(scores.T)), 1)
    most = float(np.abs(above_diagonal).max())
    if most > CORRELATED + 5 / np.sqrt(len(scores)):
        return f"experts' scores are not independent: correlated up to {most:.2f}"
    return ""
