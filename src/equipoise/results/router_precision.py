"""router precision: what `equipoise doctor --precision` answers, as typed rows. The terminal,
--json and the page are made from them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

from equipoise.storage.layer_names import layer_labels, layer_number

MARGIN_OCTAVES = tuple(range(-32, 5))
"""bin i has margins from 2^o to 2^(o+1), o its octave; the first has all below too, the last all
above
"""

Source = Literal["product", "logits", "scores", "margins"]
"""the product of hidden states and weights, computed anew; the logits the gate returned, rounded;
recorded scores, rounded; recorded margins alone, where nothing can be computed
"""
SOURCE_NOTES: dict[Source, str] = {
    "product": "the product of hidden states and weights was computed anew",
    "logits": "the gate's own logits were rounded, since its weights alone do not give them",
    "scores": "recorded scores were rounded, since logits are not recorded",
    "margins": "only margins were recorded: the shares are of tokens whose margin is below one ulp",
}


@dataclasses.dataclass(frozen=True)
class PrecisionEffect:
    """What one precision does to one layer: shares of tokens whose experts change."""

    precision: str
    logits: float | None
    """where logits are computed in it; None where only margins are known"""
    bias: float | None
    """where the bias is rounded to it; None where there is no bias"""
    both: float | None
    whole: float | None
    """where the score function and the sum are computed in it too"""
    below_ulp: float
    """share of tokens whose margin is below one ulp of the scores that were ranked"""
    ulp: float
    """median over tokens, at the K-th score"""
    not_finite: float
    """share of tokens with a logit that overflows"""
    changed_by_margin: tuple[int, ...]
    """tokens that change, by octave of their margin: by both, or by what there is"""
    whole_by_margin: tuple[int, ...]
    """the same by whole; empty where nothing was computed"""

    def share_of(self, part: str) -> float | None:
        """By the name of a column: logits, bias, both, whole, below ulp; or largest."""
        if part == "largest":
            return self.largest
        share: float | None = getattr(self, part.replace(" ", "_"))
        return share

    @property
    def largest(self) -> float:
        """The share that a verdict is about: logits, bias or both, whichever changes most."""
        known = [each for each in (self.logits, self.bias, self.both) if each is not None]
        return max(known) if known else self.below_ulp


@dataclasses.dataclass(frozen=True)
class LayerPrecision:
    """One router."""

    layer: str
    tokens: int
    experts: int | None
    top_k: int
    source: Source
    margin: float
    """median over tokens"""
    margins: tuple[int, ...]
    """tokens by octave of their margin"""
    effects: tuple[PrecisionEffect, ...]

    def effect_of(self, precision: str) -> PrecisionEffect:
        return next(each for each in self.effects if each.precision == precision)


@dataclasses.dataclass(frozen=True)
class RouterPrecision:
    """How far the choice of experts depends on the precision of the router."""

    model: str
    """the folder or file that was looked at"""
    allowed: float
    """share of tokens in a layer above which a precision is refused"""
    precisions: tuple[str, ...]
    layers: tuple[LayerPrecision, ...]
    any_layer: dict[str, float]
    """by precision: share of tokens whose experts change in at least one layer"""
    skipped: dict[str, str]
    """routers that were not examined, and why"""

    @property
    def serious(self) -> bool:
        """Whether one of the precisions changes more than is allowed, in any layer."""
        return any(self._over(precision, "largest") for precision in self.precisions)

    @property
    def verdicts(self) -> list[str]:
        """A sentence for each precision."""
        return [self._verdict_on(precision) for precision in self.precisions]

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return dataclasses.asdict(self) | {
            "margin_octaves": MARGIN_OCTAVES,
            "serious": self.serious,
            "verdicts": self.verdicts,
        }

    @property
    def labels(self) -> list[str]:
        """Short names of the layers: their numbers, where these tell them apart."""
        return layer_labels([layer.layer for layer in self.layers])

    def worst_layer(self, precision: str, part: str = "largest") -> LayerPrecision:
        return max(self.layers, key=lambda layer: _share_of(layer, precision, part))

    def _over(self, precision: str, part: str) -> list[LayerPrecision]:
        return [layer for layer in self.layers if _share_of(layer, precision, part) > self.allowed]

    def _verdict_on(self, precision: str) -> str:
        if not self._over(precision, "largest"):
            worst = self.worst_layer(precision)
            share = worst.effect_of(precision).largest
            most = f"at most {share:.2%} of tokens in a layer change their experts"
            most = most if share else "no token changes its experts"
            return f"{precision} will do: {most}{self._whole_clause(precision)}."
        advice = [
            self._keep_line(precision, part, words)
            for part, words in self._parts_in_words().items()
            if self._over(precision, part)
        ]
        if not advice:
            advice = [self._keep_line(precision, "both", "the router's logits or its bias")]
        return f"{precision}: {'; '.join(advice)}{self._whole_clause(precision)}."

    def _whole_clause(self, precision: str) -> str:
        """What the score function adds, where that is more than is allowed."""
        if precision == "fp32" or not self._over(precision, "whole"):
            return ""
        share = _share_of(self.worst_layer(precision, "whole"), precision, "whole")
        return (
            f"; keep the score function and the sum in fp32: in {precision} too, it is up to "
            f"{share:.1%}"
        )

    def _parts_in_words(self) -> dict[str, str]:
        if any(layer.source == "margins" for layer in self.layers):
            return {"below ulp": "the router"}
        scored = any(layer.source == "scores" for layer in self.layers)
        return {
            "logits": "the router's scores" if scored else "the router's logits",
            "bias": "the bias",
        }

    def _keep_line(self, precision: str, part: str, words: str) -> str:
        over = self._over(precision, part)
        worst = self.worst_layer(precision, part)
        share = _share_of(worst, precision, part)
        where = self._layers_in_words(over)
        if precision == "fp32":
            return f"even fp32 changes up to {share:.2%} of tokens in {where}: they are near ties"
        may = "may change" if part == "below ulp" else "changes"
        at = f" (in {worst.layer})" if len(over) > 1 else ""
        return (
            f"keep {words} of {where} in fp32: {precision} {may} the experts of up to {share:.1%} "
            f"of tokens{at}"
        )

    def _layers_in_words(self, layers: Sequence[LayerPrecision]) -> str:
        if len(layers) == len(self.layers):
            return "every layer" if len(layers) > 1 else layers[0].layer
        numbers = [layer_number(layer.layer) for layer in layers]
        known = sorted({number for number in numbers if number is not None})
        if len(known) < len(layers):
            return ", ".join(layer.layer for layer in layers)
        return f"layer{'s'[: len(known) > 1]} {number_ranges(known)}"


def number_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers with their runs joined.

    Example:
        >>> number_ranges([1, 3, 4, 5, 9])
        '1, 3-5, 9'
    """
    runs = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), lambda each: each[1] - each[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _share_of(layer: LayerPrecision, precision: str, part: str) -> float:
    return layer.effect_of(precision).share_of(part) or 0.0


def middle_ulps(found: RouterPrecision) -> dict[str, float]:
    """By precision, the median over layers of their ulp: where it lies in a histogram of all."""
    return {
        name: sorted(layer.effect_of(name).ulp for layer in found.layers)[
            (len(found.layers) - 1) // 2
        ]
        for name in found.precisions
    }
