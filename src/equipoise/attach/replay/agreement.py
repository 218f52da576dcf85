"""agree: two recordings of the same tokens, and where they took other experts.

A trainer and an engine, bf16 and float32, two commits: the same model, and some tokens choose
otherwise. A choice that was won by a hair is lost to rounding; one that was won by far is not, and
means that something else differs. And what a layer does otherwise, all later ones see: so the layer
in which a token *first* differs says more than the number that differ in the last.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equipoise.attach.replay.expert_choices import ExpertChoices, Rows
from equipoise.attach.replay.given_experts import LIVE, layer_number
from equipoise.attach.replay.megatron_trace import read_megatron_trace

MARGIN_EDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, np.inf)
"""of the bins that differing tokens are sorted into"""


class FirstDifference(NamedTuple):
    """The first token of the first layer in which the two differ."""

    layer: str
    token: int
    first: list[int]
    """the experts in the first recording"""
    second: list[int]


class MarginBin(NamedTuple):
    """Tokens whose choice was won by at least `low` and less than `high`."""

    low: float
    high: float
    tokens: int
    differ: int


@dataclasses.dataclass(frozen=True)
class LayerAgreement:
    """One layer of the two."""

    layer: str
    tokens: int
    """compared: without those that are -1 in either"""
    choices_differ: float
    """share of all T x K choices that the other did not make"""
    tokens_differ: float
    """share of tokens with at least one such choice"""
    first_differ: float
    """share of tokens that differ here, and in no layer before"""
    margins: list[MarginBin] | None
    """None where the recordings have no margins"""


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far two recordings agree."""

    layers: list[LayerAgreement]
    choices_differ: float
    """over all layers"""
    tokens_differ: float
    """share of tokens that differ in some layer"""
    first: FirstDifference | None
    """None where they agree"""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        layers = [
            {
                **dataclasses.asdict(layer),
                "margins": layer.margins and [each._asdict() for each in layer.margins],
            }
            for layer in self.layers
        ]
        first = None if self.first is None else self.first._asdict()
        return {**dataclasses.asdict(self), "layers": layers, "first": first}


def agree(first: ExpertChoices | str | Path, second: ExpertChoices | str | Path) -> Agreement:
    """Compare the experts of two recordings of the same tokens; the order in a token is left aside.

    Args:
        first: a recording, its .npz file, or a routing trace of Megatron (.jsonl).
        second: another. Where both are of the same layers they may call them by other names, as
            long as these have the same global indices.

    Example:
        >>> equipoise.agree("trainer.npz", "engine.npz")  # doctest: +SKIP
    """
    ours, theirs = _read_recording(first), _read_recording(second)
    found: list[LayerAgreement] = []
    # by the number of tokens, since a model may route those of pictures apart from those of text
    differed: dict[int, Rows] = {}
    start: FirstDifference | None = None
    for mine, other in _pair_layers(ours.layers, theirs.layers):
        rows = ours[mine], theirs[other]
        _check_pair(mine, *rows)
        known, missing = _compare_rows(*rows)
        before = differed.setdefault(len(known), np.zeros(len(known), bool))
        margins = _lower_margins(ours.margins.get(mine), theirs.margins.get(other))
        found.append(_summary(mine, known, missing, before, margins))
        start = start or _first_difference(mine, rows, missing)
        before |= missing > 0
    choices = sum(layer.tokens * layer.choices_differ for layer in found)
    tokens = sum(int(each.sum()) for each in differed.values())
    return Agreement(
        found,
        choices / max(1, sum(layer.tokens for layer in found)),
        tokens / max(1, sum(differed)),
        start,
    )


def _first_difference(layer: str, rows: tuple[Rows, Rows], missing: Rows) -> FirstDifference | None:
    if not missing.any():
        return None
    token = int((missing > 0).argmax())
    return FirstDifference(layer, token, rows[0][token].tolist(), rows[1][token].tolist())


def _compare_rows(ours: Rows, theirs: Rows) -> tuple[Rows, Rows]:
    """(T,) bool, whether both are known; (T,) the share of our experts that they did not take."""
    known = (ours != LIVE).all(1) & (theirs != LIVE).all(1)
    shared = (ours[:, :, None] == theirs[:, None, :]).any(2).sum(1)
    return known, np.where(known, ours.shape[1] - shared, 0) / ours.shape[1]


def _summary(
    layer: str, known: Rows, missing: Rows, before: Rows, margins: Rows | None
) -> LayerAgreement:
    tokens = int(known.sum())
    share = max(tokens, 1)
    return LayerAgreement(
        layer=layer,
        tokens=tokens,
        choices_differ=float(missing.sum() / share),
        tokens_differ=float((missing > 0).sum() / share),
        first_differ=float(((missing > 0) & ~before).sum() / share),
        margins=None if margins is None else _sort_by_margin(margins[known], missing[known] > 0),
    )


def _sort_by_margin(margins: Rows, differ: Rows) -> list[MarginBin]:
    places = np.digitize(margins, MARGIN_EDGES[1:-1])
    return [
        MarginBin(low, high, int((places == at).sum()), int(differ[places == at].sum()))
        for at, (low, high) in enumerate(itertools.pairwise(MARGIN_EDGES))
    ]


def _lower_margins(ours: Rows | None, theirs: Rows | None) -> Rows | None:
    """By how little a token's choice was won, in either."""
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    return np.minimum(ours, theirs)


def _pair_layers(ours: list[str], theirs: list[str]) -> list[tuple[str, str]]:
    """The layers of the one and of the other, in the order of the first."""
    if set(ours) == set(theirs):
        return [(name, name) for name in ours]
    mine, others = _by_number(ours), _by_number(theirs)
    if mine is None or others is None or mine.keys() != others.keys():
        raise ValueError(
            f"the two are of different layers: {', '.join(ours)}, and {', '.join(theirs)}"
        )
    return [(name, others[number]) for number, name in mine.items()]


def _by_number(layers: list[str]) -> dict[int | None, str] | None:
    found = {layer_number(name): name for name in layers}
    return found if len(found) == len(layers) and None not in found else None


def _check_pair(layer: str, ours: Rows, theirs: Rows) -> None:
    if ours.shape != theirs.shape:
        raise ValueError(
            f"{layer}: {ours.shape[0]} tokens of {ours.shape[1]} experts, and {theirs.shape[0]} "
            f"of {theirs.shape[1]}: record the same tokens twice"
        )


def _read_recording(source: ExpertChoices | str | Path) -> ExpertChoices:
    if isinstance(source, ExpertChoices):
        return source
    if Path(source).suffix == ".jsonl":
        return ExpertChoices(
            {str(layer): rows for layer, rows in read_megatron_trace(source).items()}
        )
    return ExpertChoices.load(source)
