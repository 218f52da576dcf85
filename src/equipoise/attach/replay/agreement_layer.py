"""One layer of two recordings: how its tokens differ, by which margin, and how far gates moved."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from equipoise.attach.replay.agreement_rows import (
    Explained,
    GateDistance,
    LayerAgreement,
    MarginBin,
)
from equipoise.attach.replay.expert_choices import ExpertChoices, Rows
from equipoise.attach.replay.given_experts import LIVE
from equipoise.routing.rounding import Precision, ulp_at

MARGIN_EDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, np.inf)
"""of the bins that differing tokens are sorted into"""


@dataclasses.dataclass(frozen=True)
class LayerPair:
    """The T tokens of one layer in both recordings."""

    layer: str
    ours: Rows
    """(T, K)"""
    theirs: Rows
    known: Rows
    """(T,) bool: not -1 in either"""
    missing: Rows
    """(T,) the share of our experts that they did not take"""
    margins: Rows | None
    """(T,) by how little a choice was won, in either"""
    moved: Rows | None
    """(T,) how far scores moved at least where a token differs: one choice was won by its margin,
    the other by the other's, so by the sum of both
    """
    levels: Rows | None
    """(T,) how large the scores are, in either"""
    gates: tuple[Rows, Rows] | None
    """(T, K) ours and theirs"""

    @property
    def differ(self) -> Rows:
        """(T,) bool."""
        return self.missing > 0


def pair_layer(ours: ExpertChoices, theirs: ExpertChoices, mine: str, other: str) -> LayerPair:
    """The layer that is called `mine` in the one and `other` in the other."""
    rows = ours[mine], theirs[other]
    known = (rows[0] != LIVE).all(1) & (rows[1] != LIVE).all(1)
    shared = _same_experts(*rows).any(2).sum(1)
    top_k = rows[0].shape[1]
    gates = ours.gates.get(mine), theirs.gates.get(other)
    return LayerPair(
        mine,
        *rows,
        known,
        np.where(known, top_k - shared, 0) / top_k,
        _combine(np.minimum, ours.margins.get(mine), theirs.margins.get(other)),
        _combine(np.add, ours.margins.get(mine), theirs.margins.get(other)),
        _combine(np.maximum, ours.levels.get(mine), theirs.levels.get(other)),
        None if gates[0] is None or gates[1] is None else (gates[0], gates[1]),
    )


def summarize_pair(
    pair: LayerPair, before: Rows, precision: Precision | None, ulps: float
) -> LayerAgreement:
    """The row of a layer; `before` (T,) are the tokens that differed in a layer before."""
    tokens = int(pair.known.sum())
    share, differ = max(tokens, 1), pair.differ
    margins = pair.margins
    return LayerAgreement(
        layer=pair.layer,
        tokens=tokens,
        choices_differ=float(pair.missing.sum() / share),
        tokens_differ=float(differ.sum() / share),
        first_differ=float((differ & ~before).sum() / share),
        margins=None if margins is None else _sort_by_margin(pair, margins),
        largest_margin=None
        if margins is None or not differ.any()
        else float(margins[differ].max()),
        explained=None if precision is None else _explain(pair, before, precision, ulps),
        gates=None if pair.gates is None else gate_distance(pair, *pair.gates),
    )


def _explain(pair: LayerPair, before: Rows, precision: Precision, ulps: float) -> Explained | None:
    """Sort the tokens that differ by what explains it."""
    if pair.moved is None:
        return None
    # scores of a softmax or a sigmoid lie below 1: the coarsest that they can be
    levels = np.ones_like(pair.moved) if pair.levels is None else pair.levels
    within = pair.moved <= ulps * ulp_at(levels, precision)
    rounding = pair.differ & within
    follows = pair.differ & ~within & before
    other = pair.differ & ~within & ~before
    return Explained(*(int(each.sum()) for each in (rounding, follows, other)))


def gate_distance(pair: LayerPair, ours: Rows, theirs: Rows) -> GateDistance:
    """Of the tokens that both know."""
    same = _same_experts(pair.ours, pair.theirs)[pair.known]
    first, second = (each[pair.known].astype(np.float64) for each in (ours, theirs))
    if not len(first):
        return GateDistance(0.0, 0.0, 0.0)
    # what the second gives to each expert of the first, 0 where it did not take it
    given = (same * second[:, None, :]).sum(2)
    left = np.where(same.any(1), 0.0, second).sum(1)
    moved = (np.abs(first - given).sum(1) + left) / 2
    alike = np.all(same.any(2), axis=1)
    divergences = _divergences(first[alike], given[alike])
    return GateDistance(
        float(divergences.mean()) if len(divergences) else 0.0,
        float(divergences.max(initial=0.0)),
        float(moved.mean()),
    )


def _divergences(first: Rows, second: Rows) -> Rows:
    """(T,) KL(first || second) of each token's gates, whose sums are 1; 0 log 0 = 0."""
    tiny = np.finfo(np.float64).tiny
    ratios = np.log(np.maximum(first, tiny)) - np.log(np.maximum(second, tiny))
    # sums are 1 up to rounding, which the subtraction takes out: never below 0
    return (first * ratios - first + second).sum(1)


def _same_experts(ours: Rows, theirs: Rows) -> Rows:
    """(T, K, K) bool: whether our i-th expert is their j-th."""
    return ours[:, :, None] == theirs[:, None, :]


def _sort_by_margin(pair: LayerPair, margins: Rows) -> list[MarginBin]:
    kept, differ = margins[pair.known], pair.differ[pair.known]
    places = np.digitize(kept, MARGIN_EDGES[1:-1])
    return [
        MarginBin(low, high, int((places == at).sum()), int(differ[places == at].sum()))
        for at, (low, high) in enumerate(itertools.pairwise(MARGIN_EDGES))
    ]


def _combine(how: np.ufunc, ours: Rows | None, theirs: Rows | None) -> Rows | None:
    """Of both recordings, or of the one that has it."""
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    combined: Rows = how(ours, theirs)
    return combined
