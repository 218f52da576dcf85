"""From tokens to shares: one router's choices in every precision, as a row of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.integrations.precision.choices import ChoicesInPrecision
from equipoise.results.router_precision import (
    MARGIN_OCTAVES,
    LayerPrecision,
    PrecisionEffect,
    Source,
)
from equipoise.routing.rounding import Precision, ulp_at


class ExaminedRouter(NamedTuple):
    """One router's tokens, and where they came from."""

    choices: ChoicesInPrecision
    experts: int | None
    """E; None where only margins are known"""
    top_k: int
    source: Source


_WORST_FIRST = ("both", "logits")
"""the part whose tokens are sorted by margin: the first that there is"""


def join_choices(parts: Sequence[ChoicesInPrecision]) -> ChoicesInPrecision:
    """Several batches of one router."""
    return ChoicesInPrecision(
        np.concatenate([each.margins for each in parts]),
        np.concatenate([each.levels for each in parts]),
        {key: np.concatenate([each.changed[key] for each in parts]) for key in parts[0].changed},
        {
            key: np.concatenate([each.not_finite[key] for each in parts])
            for key in parts[0].not_finite
        },
    )


def summarize_layer(
    layer: str, router: ExaminedRouter, precisions: Sequence[Precision]
) -> LayerPrecision:
    """A row of the answer."""
    found = router.choices
    return LayerPrecision(
        layer=layer,
        tokens=len(found.margins),
        experts=router.experts,
        top_k=router.top_k,
        source=router.source,
        margin=_lower_median(found.margins),
        margins=count_octaves(found.margins),
        effects=tuple(_effect_of(found, each) for each in precisions),
    )


def share_in_any_layer(
    layers: Iterable[ChoicesInPrecision], precisions: Sequence[Precision]
) -> dict[str, float]:
    """By precision, the share of tokens that change in at least one layer.

    Layers that route other tokens (a router of pictures) are left out of it: those are taken that
    have as many as most have.
    """
    found = list(layers)
    lengths = [len(each.margins) for each in found]
    common = max(set(lengths), key=lengths.count)
    alike = [each for each in found if len(each.margins) == common]
    return {
        each.name: float(np.any([worst_changes(layer, each) for layer in alike], axis=0).mean())
        for each in precisions
    }


def worst_changes(found: ChoicesInPrecision, precision: Precision) -> NDArray[np.bool_]:
    """(T,) which tokens change by logits and bias; by margin alone where nothing was computed."""
    for part in _WORST_FIRST:
        if (precision.name, part) in found.changed:
            return found.changed[precision.name, part]
    return _below_ulp(found, precision)


def count_octaves(margins: NDArray[np.float64]) -> tuple[int, ...]:
    """Tokens by octave of their margin; ties are in the first, what has no margin in the last."""
    low, high = MARGIN_OCTAVES[0], MARGIN_OCTAVES[-1]
    octaves = np.frexp(margins)[1] - 1
    octaves = np.where(margins == 0, low, np.where(np.isinf(margins), high, octaves))
    places = np.clip(octaves, low, high) - low
    return tuple(np.bincount(places, minlength=len(MARGIN_OCTAVES)).tolist())


def _effect_of(found: ChoicesInPrecision, precision: Precision) -> PrecisionEffect:
    shares = _shares_by_part(found.changed, precision.name)
    whole = found.changed.get((precision.name, "whole"))
    overflowed = found.not_finite.get(precision.name)
    return PrecisionEffect(
        precision=precision.name,
        logits=shares.get("logits"),
        bias=shares.get("bias"),
        both=shares.get("both"),
        whole=shares.get("whole"),
        below_ulp=float(_below_ulp(found, precision).mean()),
        ulp=_lower_median(ulp_at(found.levels, precision)),
        not_finite=0.0 if overflowed is None else float(overflowed.mean()),
        changed_by_margin=count_octaves(found.margins[worst_changes(found, precision)]),
        whole_by_margin=() if whole is None else count_octaves(found.margins[whole]),
    )


def _shares_by_part(
    changed: Mapping[tuple[str, str], NDArray[np.bool_]], precision: str
) -> dict[str, float]:
    return {
        part: float(flags.mean()) for (name, part), flags in changed.items() if name == precision
    }


def _below_ulp(found: ChoicesInPrecision, precision: Precision) -> NDArray[np.bool_]:
    return found.margins < ulp_at(found.levels, precision)


def _lower_median(values: NDArray[np.float64]) -> float:
    """A value that occurs: of an even number, the lower of the two in the middle."""
    return float(np.sort(values)[(len(values) - 1) // 2])
