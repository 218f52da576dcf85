"""The floor: by formula where tokens are independent, by a block bootstrap where they are not;
Monte Carlo is the judge.
"""

import dataclasses

import numpy as np
import pytest

from equipoise.arena.cells import Cell, run_cells
from equipoise.arena.floor import binomial_floor, expert_shares, imbalance_floor
from equipoise.arena.reference import StreamReference
from equipoise.arena.streams.synthetic import Skew, Synthetic

EVEN = Synthetic(
    name="even",
    popularity=(Skew(0.0),),
    score="sigmoid",
    num_tokens=2048,
    num_experts=16,
    top_k=2,
    steps=60,
    block=32,
)


def measured(stream):
    """Without skew every expert is equally likely, and nothing needs a shift."""
    (result,) = run_cells(
        [Cell(stream, "none")], StreamReference(1.0, {str(stream.steps - 1): 1.0})
    )
    return np.mean(result.imbalance)


def test_bootstrap_of_independent_tokens_is_the_formula():
    assert imbalance_floor(EVEN, batches=8) == pytest.approx(
        binomial_floor(2048, expert_shares(EVEN)), rel=0.06
    )


def test_bootstrap_sees_sequences():
    alike = dataclasses.replace(EVEN, sequence_offset=0.7)
    assert imbalance_floor(alike, batches=8) == pytest.approx(measured(alike), rel=0.06)
    assert imbalance_floor(alike, batches=8) > 2 * binomial_floor(2048, expert_shares(alike))


def test_bootstrap_allows_for_padding():
    padded = dataclasses.replace(EVEN, padding=0.3)
    assert imbalance_floor(padded, batches=8) == pytest.approx(measured(padded), rel=0.06)


def test_unequal_shares_have_a_floor():
    """Loads are binomial: 200,000 draws of each."""
    share = np.array([0.5, 0.25, 0.25])
    drawn = np.random.default_rng(0).binomial(1000, share, (200_000, 3))
    assert binomial_floor(1000, share) == pytest.approx(
        (np.abs(drawn / (1000 * share) - 1)).mean(), rel=0.01
    )
