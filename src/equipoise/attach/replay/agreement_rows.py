"""What `agree` answers, as typed rows. The terminal, --json and the page are made from them."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from equipoise.storage.layer_names import layer_labels


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


class Explained(NamedTuple):
    """The tokens of one layer that differ, by what explains it. They add up."""

    rounding: int
    """whose two margins add up to no more than the rounding of the precision"""
    follows: int
    """of the others, those that differed in a layer before, and so came with other hidden states"""
    other: int
    """the rest: something else differs"""


class GateDistance(NamedTuple):
    """How far the gates of one layer lie apart."""

    kl: float
    """KL(first || second), mean over tokens that took the same experts"""
    largest_kl: float
    moved: float
    """half the sum of |differences|, mean over all tokens: the share of a token that went to other
    experts
    """


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
    largest_margin: float | None = None
    """of the tokens that differ: no choice that was won by more was lost"""
    explained: Explained | None = None
    """None without a precision, or without margins"""
    gates: GateDistance | None = None
    """None where the recordings have no gates"""

    @property
    def changed(self) -> int:
        """Tokens that differ."""
        return round(self.tokens_differ * self.tokens)


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
    precision: str | None = None
    """whose rounding differences are held against"""
    ulps: float = 0.0
    """within how many of its ulps a margin counts as rounding"""

    @property
    def labels(self) -> list[str]:
        """Short names of the layers."""
        return layer_labels([layer.layer for layer in self.layers])

    @property
    def explained(self) -> Explained | None:
        """Over all layers; None without a precision."""
        known = [layer.explained for layer in self.layers if layer.explained is not None]
        return Explained(*(sum(each) for each in zip(*known))) if known else None

    @property
    def serious(self) -> bool:
        """Whether rounding was to explain all differences, and does not."""
        return self.explained is not None and self.explained.other > 0

    def verdict(self) -> str:
        """In words."""
        if self.first is None:
            return "They agree in every token of every layer."
        layer, token, ours, theirs = self.first
        lines = [
            f"{self.choices_differ:.3%} of choices differ, and {self.tokens_differ:.3%} of tokens "
            f"in some layer. The first difference is in {layer}, token {token}: {ours} and "
            f"{theirs}."
        ]
        if self.explained is not None:
            lines.append(self._explained_line(self.explained))
        return " ".join(lines)

    def _explained_line(self, found: Explained) -> str:
        rounding, follows, other = found
        total = sum(found)
        worst = max(self.layers, key=lambda layer: layer.explained.other if layer.explained else 0)
        rest = (
            "nothing is left"
            if not other
            else f"{other:,} are left, most in {worst.layer}: something else differs"
        )
        return (
            f"Of {total:,} differences (a token in a layer), {rounding:,} lie within {self.ulps:g} "
            f"ulps of {self.precision}, {follows:,} follow one in a layer before, and {rest}."
        )

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        layers = [_layer_dict(layer) for layer in self.layers]
        first = None if self.first is None else self.first._asdict()
        explained = None if self.explained is None else self.explained._asdict()
        return {
            **dataclasses.asdict(self),
            "layers": layers,
            "first": first,
            "explained": explained,
            "verdict": self.verdict(),
        }


def _layer_dict(layer: LayerAgreement) -> dict[str, object]:
    return {
        **dataclasses.asdict(layer),
        "margins": layer.margins and [each._asdict() for each in layer.margins],
        "explained": layer.explained and layer.explained._asdict(),
        "gates": layer.gates and layer.gates._asdict(),
    }
