"""Evidence for the stochastic statements: batches drawn at one shift, beside the probabilities they
are drawn by.

From a law, batches are drawn here and probabilities are exact. From a trace, the tokens of a batch
kept whole are put in a random order, so that they are as if drawn independently: half of them give
the probabilities, the other half is cut into sub-batches. Nothing is asked of the experts, which
may depend on each other in any way (errata 19): softmax gates too. Whether successive tokens are
independent, as the paper has it, is an assumption of its own (statements/assumptions.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.expected.dual import Expected
from equipoise.expected.moments import LoadMoments
from equipoise.optimum.arrays import Floats, Ints
from equipoise.optimum.loop import choose_top_k
from equipoise.theorems.registry import EvidenceKind, Setting
from equipoise.theorems.verdict import require_hypothesis
from equipoise.trace import Record, Trace

SUB_BATCHES = 32
SAMPLED_TOKENS = 8192
"""tokens drawn from a law, for statements about single tokens"""


@dataclass(frozen=True)
class Draws(LoadMoments):
    """Loads (S, E) of S batches of T independent tokens, all routed under one shift."""

    loads: Ints
    shift: Floats
    num_tokens: int
    top_k: int
    selection_probability: Floats
    """(E) pi, exact or from held-out tokens"""
    scores: Floats
    """(n, E) tokens of the same law, in the order they came in"""
    held_out: float = np.inf
    """how many tokens the probabilities were counted on; inf: they are exact"""
    expected: Expected | None = None
    """the law, where it is known"""
    sequence: int | None = None
    """how many successive tokens are of one sequence, where that is known"""
    obstacle: str = ""
    """why nothing can be drawn; nothing if empty"""
    number: int = 0
    layer: str = ""

    def require_draws(self) -> None:
        require_hypothesis(not self.obstacle, self.obstacle)

    @cached_property
    def shifted(self) -> Floats:
        return self.scores + self.shift


DrawnSource = Expected | Draws | Trace | Iterable[Draws]


def draw_batches(expected: Expected, shift: Floats, batches: int, seed: int) -> Draws:
    """Batches of the law, routed."""
    rng, shift = np.random.default_rng(seed), np.asarray(shift, np.float64)
    loads = [
        choose_top_k(expected.sample(rng, expected.num_tokens) + shift, expected.top_k).sum(0)
        for _ in range(batches)
    ]
    return Draws(
        np.array(loads),
        shift,
        expected.num_tokens,
        expected.top_k,
        expected.selection_probability(shift),
        scores=expected.sample(rng, SAMPLED_TOKENS),
        expected=expected,
    )


def draws_of(source: DrawnSource) -> Iterator[Draws]:
    """The draws in a source: a trace's whole batches; of a law, 400 batches at p = 0."""
    if isinstance(source, Draws):
        yield source
    elif isinstance(source, Expected):
        yield draw_batches(source, np.zeros(source.num_experts), batches=400, seed=0)
    elif isinstance(source, Trace):
        for layer in range(len(source.layers)):
            for step in source.whole_steps(layer):
                yield draws_of_record(source.record(layer, step), source, source.layers[layer])
    else:
        yield from source


def draws_of_record(record: Record, trace: Trace, layer: str = "") -> Draws:
    """A whole batch in a random order: half of it held out, half cut into sub-batches."""
    scores, shift = record.scores.astype(np.float64), record.shift.astype(np.float64)
    chosen = choose_top_k(scores + shift, trace.top_k)
    order = np.random.default_rng(record.step).permutation(len(scores))
    tokens = len(scores) // (2 * SUB_BATCHES)
    drawn, held_out = np.split(order, [tokens * SUB_BATCHES])
    loads = chosen[drawn].reshape(SUB_BATCHES, tokens, shift.size).sum(1)
    few = f"{len(scores)} tokens are too few to cut into {SUB_BATCHES} sub-batches and as many more"
    return Draws(
        loads,
        shift,
        max(tokens, 1),
        trace.top_k,
        chosen[held_out].mean(0),
        scores=scores,
        held_out=float(held_out.size),
        sequence=trace.sequence_length,
        obstacle="" if tokens else few,
        number=record.step,
        layer=layer,
    )


DRAWS = EvidenceKind(Setting.DRAWN_BATCHES, draws_of)
"""for statements about the gap as a stochastic gradient"""
