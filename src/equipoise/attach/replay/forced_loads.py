"""Loads that are forced upon every router: even ones for benchmarks, skewed ones for stress tests.

`force="balanced"` is EvenLoads (even_loads.py). A weight for each expert is SkewedLoads: in every
forward of T tokens expert k is chosen floor(T p_k) or ceil(T p_k) times, p_k = K w_k / sum(w).

That is done by the wrap-around rule: experts stand in a row, each as often as it is to be chosen;
the row of T K places is cut into K columns of T, and token t takes the t-th of each column. An
expert that is chosen at most T times meets no token twice, and its places are consecutive.

The counts are differences of rounded cumulative sums, floor(T P_k + u), so that they add up to T K.
All is in whole numbers: weights are fractions, and floats are what they are to the last bit. The
offset u moves by the golden ratio from forward to forward, so that over many short forwards the
remainder does not always fall on the same experts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np

from equipoise.attach.replay.even_loads import EvenLoads
from equipoise.attach.replay.expert_choices import Rows, narrow_integers
from equipoise.attach.replay.given_experts import GivenExperts, RouterShape
from equipoise.attach.replay.given_rows import GivenRows

Force = str | Sequence[float] | None
"""\"balanced\"; or weights, one for each expert"""

_GOLDEN = Fraction(987, 1597)


@runtime_checkable
class ForcedLoads(Protocol):
    """What says which experts every router takes, for any number of tokens."""

    def rows_of(self, router: RouterShape) -> GivenRows:
        """What one router takes."""


def given_or_forced(
    experts: GivenExperts | ForcedLoads | None, force: Force, devices: int
) -> GivenExperts | ForcedLoads:
    """What a replay takes: exactly one of experts and force."""
    if (experts is None) == (force is None):
        raise ValueError(
            'a replay takes experts, or force="balanced", or force=weights: give one of them'
        )
    if experts is not None:
        return experts
    if isinstance(force, str):
        if force != "balanced":
            raise ValueError(f'force is "balanced", or a weight for each expert, not {force!r}')
        return EvenLoads(devices)
    if force is None or not hasattr(force, "__len__"):
        raise TypeError(f'force is "balanced", or a weight for each expert, not {force!r}')
    return SkewedLoads(tuple(force))


@dataclasses.dataclass(frozen=True)
class SkewedLoads:
    """Loads in proportion to weights, in every forward of the block.

    Args:
        weights: (E,), one for each expert, not negative.
    """

    weights: tuple[float, ...]

    def rows_of(self, router: RouterShape) -> GivenRows:
        """What one router takes."""
        shares = self._shares(router)
        return SkewedRows([router.top_k * share for share in shares], router.top_k)

    def _shares(self, router: RouterShape) -> list[Fraction]:
        """The share of all choices that each expert gets."""
        if len(self.weights) != router.num_experts:
            raise ValueError(
                f"{router.name}: force has {len(self.weights)} weights, one for each of "
                f"{router.num_experts} experts is expected"
            )
        if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights):
            raise ValueError(f"force: weights are finite and not negative, not {self.weights}")
        weights = [Fraction(float(weight)) for weight in self.weights]
        whole = sum(weights)
        if not whole:
            raise ValueError("force: the weights are all 0, and no expert could be chosen")
        largest = max(range(len(weights)), key=weights.__getitem__)
        if router.top_k * weights[largest] > whole:
            raise ValueError(
                f"{router.name}: force asks for {float(weights[largest] / whole):.1%} of all "
                f"choices at expert {largest}, and a token takes an expert once: with top-"
                f"{router.top_k} at most {1 / router.top_k:.1%} are possible"
            )
        return [weight / whole for weight in weights]


class SkewedRows(GivenRows):
    """Rows without end, made as they are asked for."""

    def __init__(self, per_token: Sequence[Fraction], top_k: int) -> None:
        super().__init__(np.empty((0, top_k), np.uint8))
        self._unit = math.lcm(_GOLDEN.denominator, *(each.denominator for each in per_token))
        cumulative = itertools.accumulate(per_token)
        self._ends = [int(end * self._unit) for end in cumulative]
        """where each expert ends on the line of K tokens' shares, in units"""
        self._offset = 0

    def take_next(self, name: str, tokens: int) -> Rows:
        ends = [(tokens * end + self._offset) // self._unit for end in self._ends]
        self._offset = int(self._offset + _GOLDEN * self._unit) % self._unit
        counts = np.diff(ends, prepend=0)
        row = np.repeat(np.arange(len(counts)), counts)
        return narrow_integers(row.reshape(self.rows.shape[1], tokens).T)
