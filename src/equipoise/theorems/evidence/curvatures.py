"""Evidence for statement 14: the boundary weights of a law at a shift, and their curvature."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.expected.dual import Expected, laplacian
from equipoise.optimum.arrays import Floats
from equipoise.theorems.evidence.draws import DrawnSource, draws_of
from equipoise.theorems.registry import EvidenceKind, Setting


@dataclass(frozen=True)
class Curvature:
    """Boundary weights of a law at a shift."""

    expected: Expected
    shift: Floats
    weight: Floats
    """(E, E) w(p)"""
    dependence: str = ""
    """what speaks against independent experts; nothing if empty"""
    number: int = 0

    @cached_property
    def modulus(self) -> float:
        """T lambda_2."""
        return self.expected.num_tokens * float(np.linalg.eigvalsh(laplacian(self.weight))[1])


CurvedSource = Curvature | DrawnSource | Iterable[Curvature]


def curvature_at(expected: Expected, shift: Floats) -> Curvature:
    """The exact one."""
    return Curvature(expected, np.asarray(shift, np.float64), expected.boundary_weight(shift))


def curvatures_of(source: CurvedSource) -> Iterable[Curvature]:
    """The curvatures in a source: given ones, or one at the shift of each of its draws."""
    pieces = [source] if isinstance(source, Curvature) else source
    if isinstance(pieces, list) and all(isinstance(piece, Curvature) for piece in pieces):
        yield from pieces
        return
    for draws in draws_of(pieces):  # type: ignore[arg-type]
        # dependent experts have no weights to compute: the statement will not apply
        weight = (
            np.zeros((draws.shift.size,) * 2) if draws.dependence else draws.point.boundary_weight
        )
        yield Curvature(draws.expected, draws.shift, weight, draws.dependence, draws.number)


CURVATURES = EvidenceKind(Setting.DRAWN_BATCHES, curvatures_of)
"""for statements about the second derivative"""
