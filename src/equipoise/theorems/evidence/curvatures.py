"""Evidence for statement 14: the boundary weights at a shift, and tokens to test them on.

Of a law the weights are exact integrals. Of recorded tokens, whose joint law is not known, they are
the density of ties at the K/(K+1) boundary (expected/empirical.py), from half of the tokens; the
other half is what they are tested on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.expected.dual import Expected, laplacian
from equipoise.expected.empirical import BoundaryPairs
from equipoise.expected.laws import Law
from equipoise.optimum.arrays import Floats
from equipoise.optimum.loop import choose_top_k
from equipoise.theorems.evidence.draws import SAMPLED_TOKENS, DrawnSource, Draws, draws_of
from equipoise.theorems.registry import EvidenceKind, Setting
from equipoise.theorems.verdict import require_hypothesis

MOST_PIECES = 48
"""into which a line of shifts is cut, or two more"""


@dataclass(frozen=True)
class Curvature:
    """Boundary weights at a shift, exact ones of a law or those of other tokens."""

    shift: Floats
    top_k: int
    tokens: Floats
    """(n, E) scores to test on"""
    expected: Expected | None = None
    """the law, where it is known"""
    exact_weight: Floats | None = None
    """(E, E) w(p) of the law"""
    other_tokens: Floats | None = None
    """(m, E) scores that weights are estimated from, where no law is known"""
    number: int = 0
    layer: str = ""

    def require_law(self) -> tuple[Expected, Floats]:
        """The law and its weights."""
        require_hypothesis(
            self.expected is not None and self.exact_weight is not None,
            "the law of recorded scores is not known: this needs its density",
        )
        return self.expected, self.exact_weight  # type: ignore[return-value]

    def require_a_choice(self) -> None:
        require_hypothesis(
            self.top_k < self.shift.size,
            "K = E: every weight is 0 and nothing is strongly convex (errata 4)",
        )

    @cached_property
    def reach(self) -> float:
        """How far shifts are moved to see loads change: the margin of some tokens in a hundred, and
        no more than a tenth of the distance between an expert's quartiles.
        """
        low, high = np.quantile(self.tokens, (0.25, 0.75), axis=0)
        return min(self._pairs.usual_reach, 0.1 * float((high - low).min()))

    @property
    def tokens_near_a_tie(self) -> int:
        return int((self._pairs.margins <= self.reach).sum())

    @cached_property
    def _pairs(self) -> BoundaryPairs:
        return BoundaryPairs.of(self.tokens + self.shift, self.top_k)

    def load_changes(self, direction: Floats, step: float) -> Floats:
        """(n) d (x(p + step d) - x(p - step d)): what each token adds to d times the change of
        loads; never negative, since f is convex.
        """
        ahead, behind = (
            choose_top_k(self.tokens + self.shift + sign * step * direction, self.top_k)
            for sign in (1, -1)
        )
        return (ahead.astype(np.float64) - behind) @ direction

    def curvature_integral(self, direction: Floats, h: float) -> float:
        """int_{-h}^{h} sum_{k<l} w_kl(p + s d) (d_k - d_l)^2 ds of the law, by Simpson's rule.

        w is continuous in s, but has corners where the corners of two experts' densities meet, and
        may be 0 on one side of them: the rule is applied between them.
        """
        expected, weight = self.require_law()

        def at(s: float) -> float:
            w = weight if s == 0 else expected.boundary_weight(self.shift + s * direction)
            return float(direction @ laplacian(w) @ direction)

        ends = smooth_pieces(expected.law, self.shift, direction, h)
        at_ends, at_middles = [at(s) for s in ends], [at(s) for s in (ends[1:] + ends[:-1]) / 2]
        whole = np.diff(ends) * (np.add(at_ends[1:], at_ends[:-1]) + 4 * np.array(at_middles))
        return float(whole.sum() / 6)

    def predicted_curvature(self, direction: Floats) -> tuple[float, float]:
        """The mean of sum_{k<l} w_kl (d_k - d_l)^2 (eq. 31) within reach, and its standard error.

        Of a law by its integral, of tokens by those that are tied up to the reach.
        """
        if self.expected is not None:
            return self.curvature_integral(direction, self.reach) / (2 * self.reach), 0.0
        assert self.other_tokens is not None
        pairs = BoundaryPairs.of(self.other_tokens + self.shift, self.top_k)
        values = pairs.curvatures(direction, self.reach)
        return float(values.mean()), float(values.std() / np.sqrt(values.size))


def smooth_pieces(law: Law, shift: Floats, direction: Floats, h: float) -> Floats:
    """The s in [-h, h] between which w(p + s d) is smooth, 0 among them: where corners of two
    experts' densities meet. Of many only some: the corners of so many bins are slight.
    """
    meetings = [np.array([-h, 0.0, h])]
    for k in range(len(shift)):
        speed = direction[k] - direction[k + 1 :]
        at, others = law.corners[k] + shift[k], law.corners[k + 1 :] + shift[k + 1 :, None]
        apart = others[:, :, None] - at
        with np.errstate(divide="ignore", invalid="ignore"):
            meetings.append((apart / speed[:, None, None]).ravel())
    met = np.concatenate(meetings)
    found = np.unique(np.round(met[np.abs(met) <= h] / h, 9)) * h
    every = -(-found.size // MOST_PIECES)
    return np.unique(np.concatenate([[-h, 0.0, h], found[::every]]))


CurvedSource = Curvature | DrawnSource | Iterable[Curvature]


def curvature_at(expected: Expected, shift: Floats, seed: int = 0) -> Curvature:
    """The exact weights of a law, and tokens drawn from it."""
    shift = np.asarray(shift, np.float64)
    tokens = expected.sample(np.random.default_rng(seed), SAMPLED_TOKENS)
    weight = expected.boundary_weight(shift)
    return Curvature(shift, expected.top_k, tokens, expected, weight)


def curvature_of_draws(draws: Draws) -> Curvature:
    """At the shift of draws; of a batch, every other token is held out."""
    if draws.expected is not None:
        return curvature_at(draws.expected, draws.shift)
    order = np.random.default_rng(draws.number).permutation(len(draws.scores))
    tokens, other = (draws.scores[half] for half in np.array_split(order, 2))
    return Curvature(
        draws.shift,
        draws.top_k,
        tokens,
        other_tokens=other,
        number=draws.number,
        layer=draws.layer,
    )


def curvatures_of(source: CurvedSource) -> Iterable[Curvature]:
    """The curvatures in a source: given ones, or one at the shift of each of its draws."""
    pieces = [source] if isinstance(source, Curvature) else source
    if isinstance(pieces, list) and all(isinstance(piece, Curvature) for piece in pieces):
        yield from pieces
        return
    for draws in draws_of(pieces):  # type: ignore[arg-type]
        yield curvature_of_draws(draws)


CURVATURES = EvidenceKind(Setting.DRAWN_BATCHES, curvatures_of)
"""for statements about the second derivative"""
