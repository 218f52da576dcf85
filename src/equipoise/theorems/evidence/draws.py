"""Evidence for the stochastic statements: batches drawn at one shift, beside their law.

From a law, batches are drawn here. From a trace, a batch kept whole is cut into sub-batches, and
the law is the histogram of its own scores, expert by expert. That is the paper's model only if
experts are independent: a softmax gate's cannot be (its rows sum to 1, errata 13), and a sigmoid
gate's may not be. Both are tested, and the verdict says what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.expected.dual import AtShift, Expected
from equipoise.expected.laws import Histogram
from equipoise.optimum.arrays import Floats, Ints
from equipoise.optimum.loop import choose_top_k
from equipoise.theorems.registry import EvidenceKind, Setting
from equipoise.theorems.verdict import require_hypothesis
from equipoise.trace import Record, Trace

SUB_BATCHES = 32
CORRELATED = 0.1
"""correlation from which experts are not called independent, beyond what chance does in a sample"""


@dataclass(frozen=True)
class Draws:
    """Loads (S, E) of S batches of `expected.num_tokens` tokens, all routed under one shift."""

    expected: Expected
    shift: Floats
    loads: Ints
    dependence: str = ""
    """what speaks against independent experts; nothing if empty"""
    number: int = 0

    @cached_property
    def point(self) -> AtShift:
        return self.expected.at(self.shift)

    def require_independence(self) -> None:
        """Hypothesis (sec. 5.2): scores are independent between experts."""
        require_hypothesis(not self.dependence, self.dependence)


DrawnSource = Expected | Draws | Trace | Iterable[Draws]


def draw_batches(expected: Expected, shift: Floats, batches: int, seed: int) -> Draws:
    """Batches of the law, routed."""
    rng = np.random.default_rng(seed)
    loads = [
        choose_top_k(expected.law.sample(rng, expected.num_tokens) + shift, expected.top_k).sum(0)
        for _ in range(batches)
    ]
    return Draws(expected, np.asarray(shift, np.float64), np.array(loads))


def draws_of(source: DrawnSource) -> Iterator[Draws]:
    """The draws in a source: a trace's whole batches; of a law, 400 batches at p = 0."""
    if isinstance(source, Draws):
        yield source
    elif isinstance(source, Expected):
        yield draw_batches(source, np.zeros(source.law.num_experts), batches=400, seed=0)
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
    chosen = choose_top_k(scores + shift, top_k)[: tokens * SUB_BATCHES]
    loads = chosen.reshape(SUB_BATCHES, tokens, shift.size).sum(1)
    law = Histogram.of(np.clip(scores, 0, 1))
    expected = Expected(law, top_k, max(tokens, 1), tolerance=1e-5)
    return Draws(expected, shift, loads, dependence, record.step)


def dependence_of(scores: Floats) -> str:
    """What a batch's scores say against independent experts; empty if nothing."""
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


DRAWS = EvidenceKind(Setting.DRAWN_BATCHES, draws_of)
"""for statements about the gap as a stochastic gradient"""
