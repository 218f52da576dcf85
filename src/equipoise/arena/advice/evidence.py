"""What a few batches say about a layer: how loads answer a shift, how they scatter, how they drift.

Near balance loads are linear in the shift. With e = p - p* the error of a shift,

    L - A = -H e + noise,      H = T Laplacian(w),      Cov(noise) = C

- w_kl (sec. 5.4) is the density of ties between experts k and l at the K / K+1 boundary, counted
  from the tokens whose margin is small; s_k = sum_l w_kl is the density of flips of expert k.
- C is T times the covariance of one token's choices, times the inflation of sequences: how much
  more their loads vary than those of independent tokens (errata 20).
- p* moves. Optima of batches m steps apart differ by 2 H^+ C H^+ by chance and m q_k^2 by drift, a
  random walk. q_k = rho / s_k: a common rho, so that popular experts, whose scores vary more, move
  further; single experts that move far more than the others (one that dies) have their own. With
  one batch, or too little drift to see, rho is 0.
- Batches of few sequences differ by more than chance within them shows, however near their steps
  are. Rates are chosen as if that were drift too, since one too small costs more than one too
  large; what is told and forecast is the drift that grows with the steps (`seen_rho`).

Everything is per token here, so that batches of another size can be asked about.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.optimum.arrays import Bools, Floats
from equipoise.optimum.hindsight import wanted_loads
from equipoise.optimum.loop import choose_top_k
from equipoise.optimum.solve import solve
from equipoise.theorems.evidence.crowding import threshold_distances
from equipoise.theorems.statements.assumptions import variance_inflation

NEAR_SHARE = 0.2
"""of the tokens, those with the least margins: they count as the boundary"""
_FALL = (1 - np.log(1 - NEAR_SHARE) / NEAR_SHARE) / 2
"""Margins are spread about exponentially: at 0 they are -log(1 - share) / share times as dense as
in the mean of those counted. Shifts err by less than those margins reach: halfway between."""
TIED_BELOW = 4 * float(np.finfo(np.float32).eps)
"""of the largest score: margins below are ties"""
FAR_DEVIATIONS = 8.0
"""an expert whose drift is so far from the others' has its own"""


@dataclass(frozen=True)
class LayerEvidence:
    """A layer, by its recorded batches."""

    name: str
    top_k: int
    tokens: int
    """T of the batches that are asked about"""
    shares: Floats
    """(E) K w_k / sum w: the share of the tokens each expert should have"""
    scores: Floats
    """(n, E) of the last batch"""
    optimum: Floats
    """(E) p* of the last batch"""
    weights: Floats
    """(E, E) w_kl, per token"""
    covariance: Floats
    """(E, E) of one token's choices under p*"""
    inflation: float
    rho: Floats
    """(E) drift of p* a step, in units of 1/s_k: the most there can be"""
    seen_rho: Floats
    """(E) of it what grows with the steps between batches"""
    batches: int

    @property
    def target(self) -> Floats:
        """(E) L_k."""
        return self.shares * self.tokens

    @cached_property
    def flip_density(self) -> Floats:
        """(E) s_k; experts that no token hesitates about have next to none."""
        density = self.weights.sum(1)
        return np.maximum(density, 1e-3 * density.mean())

    @cached_property
    def hessian(self) -> Floats:
        """(E, E) H."""
        return self.tokens * laplacian_of(self.weights)

    @cached_property
    def noise(self) -> Floats:
        """(E, E) C."""
        return self.tokens * self.inflation * self.covariance

    @property
    def as_seen(self) -> LayerEvidence:
        """With the drift that was seen, and no more; itself where the two are the same."""
        if np.array_equal(self.rho, self.seen_rho):
            return self
        return dataclasses.replace(self, rho=self.seen_rho)

    @property
    def drift(self) -> Floats:
        """(E) q_k."""
        return self.rho / self.flip_density

    @property
    def floor(self) -> float:
        """Imbalance that chance alone leaves."""
        return float(np.mean(np.sqrt(2 / np.pi * np.diag(self.noise)) / self.target))

    @property
    def drift_over_chance(self) -> float:
        """How far one step of drift moves loads, in multiples of what chance does to a batch."""
        moved = self.tokens * np.sqrt((self.rho**2).mean())
        return float(moved / np.sqrt(np.diag(self.noise).mean()))

    @property
    def least_curvature(self) -> float:
        """lambda_2 of the Laplacian: 1 over it is the u of 1/n steps, in units of tokens."""
        return float(np.linalg.eigvalsh(laplacian_of(self.weights))[1])

    def band(self, rate: float) -> float:
        """max_k B_k / L_k at p*: the most that steps of this rate can move a load by (errata 7)."""
        shifted = self.scores + self.optimum
        chosen = choose_top_k(shifted, self.top_k)
        near = threshold_distances(shifted, chosen, self.top_k) <= 2 * rate
        return float((near.mean(0) / self.shares).max())


def read_layer(
    name: str,
    batches: Sequence[Floats],
    steps: Sequence[int],
    top_k: int,
    *,
    target: Sequence[float] | None = None,
    block: int | None = None,
    tokens: int | None = None,
) -> LayerEvidence:
    """What the batches of a layer say.

    Args:
        name: of the layer.
        batches: scores (n, E) each, whole batches or samples of their tokens.
        steps: of the training, at which they were taken.
        top_k: K.
        target: weights of the experts' loads; equal by default.
        block: how many successive tokens are of one sequence; None: all are independent.
        tokens: in a batch of the training; by default as many as the first batch here has.
    """
    E = batches[0].shape[1]
    if top_k >= E:
        raise ValueError(
            f"{name}: every token takes all {E} experts, so that nothing is to balance"
        )
    optima, shift = [], None
    weights, covariance, inflations = np.zeros((E, E)), np.zeros((E, E)), []
    for scores in batches:
        found = solve(scores, top_k, target=wanted_loads(target, len(scores), top_k), shift=shift)
        shift = found.shift
        optima.append(np.asarray(shift - shift.mean(), np.float64))
        shifted = scores + optima[-1]
        chosen = choose_top_k(shifted, top_k)
        weights += tie_weights(shifted, top_k) / len(batches)
        covariance += np.cov(chosen.T, bias=True) / len(batches)
        inflations.append(_inflation(chosen, block))
    wanted = np.ones(E) if target is None else np.asarray(target, np.float64)
    inflation = float(np.mean(inflations))
    chance = weights, covariance, inflation, len(batches[0])
    drift = functools.partial(_drift_of, np.array(optima), np.asarray(steps), *chance)
    return LayerEvidence(
        name=name,
        top_k=top_k,
        tokens=tokens or len(batches[0]),
        shares=top_k * wanted / wanted.sum(),
        scores=np.asarray(batches[-1], np.float64),
        optimum=optima[-1],
        weights=weights,
        covariance=covariance,
        inflation=inflation,
        rho=drift(level=False, unseen=inflation > 1),
        seen_rho=drift(level=inflation > 1, unseen=False),
        batches=len(batches),
    )


def tie_weights(shifted: Floats, top_k: int) -> Floats:
    """(E, E) w_kl, per token: tokens that hesitate between k and l by at most h, over h, counted
    from either side.

    Tokens that the optimum itself ties are left out: given where it lies, the others are as dense
    around it as around any shift, and the tied ones come on top. Of few tokens for each expert
    they would be most of those that hesitate.
    """
    T, E = shifted.shape
    first = np.argpartition(-shifted, (top_k - 1, top_k), axis=1)[:, : top_k + 1]
    worst_chosen, best_left_out = first[:, top_k - 1], first[:, top_k]
    rows = np.arange(T)
    margin = shifted[rows, worst_chosen] - shifted[rows, best_left_out]
    free = _not_tied_by_optimum(margin, E, TIED_BELOW * np.abs(shifted).max())
    reach = np.quantile(margin[free], NEAR_SHARE) if free.any() else 0.0
    if not reach > 0:
        raise ValueError(
            "too many tokens are tied between two experts: scores have few values, or batches "
            "fewer tokens than experts"
        )
    near = free & (margin <= reach)
    pairs = np.zeros((E, E))
    np.add.at(pairs, (worst_chosen[near], best_left_out[near]), 1)
    return _FALL * (pairs + pairs.T) / (2 * reach * free.sum())


def _not_tied_by_optimum(margin: Floats, experts: int, rounding: float) -> Bools:
    """(T) all but the tokens that are tied to rounding, of which an optimum makes E - 1 at most:
    more are the scores' own.
    """
    order = np.argsort(margin)[: experts - 1]
    free = np.ones(len(margin), bool)
    free[order[margin[order] <= rounding]] = False
    return free


def laplacian_of(weights: Floats) -> Floats:
    """Degrees less weights."""
    return np.diag(weights.sum(1)) - weights


def _inflation(chosen: Bools, block: int | None) -> float:
    """1 for independent tokens, and never below: few sequences may vary less by chance."""
    if block is None or block < 2 or len(chosen) < 4 * block:
        return 1.0
    return max(1.0, variance_inflation(chosen, block)[0])


def _drift_of(
    optima: Floats,
    steps: Floats,
    weights: Floats,
    covariance: Floats,
    inflation: float,
    tokens: int,
    *,
    level: bool,
    unseen: bool,
) -> Floats:
    """(E) rho, by least squares over all pairs of batches: what their optima differ by beyond
    chance grows with the steps between them.
    """
    E = len(weights)
    if len(optima) < 2:
        return np.zeros(E)
    density = np.maximum(weights.sum(1), 1e-3 * weights.sum(1).mean())
    inverse = np.linalg.pinv(laplacian_of(weights), rcond=1e-6, hermitian=True)
    chance = 2 * np.diag(inverse @ covariance @ inverse) * inflation / tokens
    older, newer = np.triu_indices(len(optima), 1)
    moved = optima[newer] - optima[older]
    beyond = density**2 * (moved**2 - chance)
    apart, scatter = steps[newer] - steps[older], (density**2 * chance).mean()
    alone, common = _fit_growth(apart, beyond, scatter, level=level)
    if unseen and len(optima) > 3:
        pairs = [(older != left_out) & (newer != left_out) for left_out in range(len(optima))]
        without = [_fit_growth(apart[p], beyond[p], scatter, level=level)[1] for p in pairs]
        common = _mean_above_0(common, np.std(without) * np.sqrt(len(optima) - 1))
    squared = np.where(_far_above(alone), alone, common)
    return np.sqrt(np.maximum(squared, 0.0))


def _fit_growth(
    apart: Floats, beyond: Floats, scatter: float, *, level: bool
) -> tuple[Floats, float]:
    """(E) slopes, and their mean over experts that are alike.

    Pairs count by how well they are known, which depends on the drift: a few rounds settle it.
    """
    common, alone = 0.0, np.zeros(beyond.shape[1])
    for _ in range(5):
        known = 1 / (scatter + apart * max(common, 0.0)) ** 2
        alone = _growth(apart, beyond, known, level=level)
        common = float(alone[~_far_above(alone)].mean())
    return alone, common


def _mean_above_0(value: float, error: float) -> float:
    """What a number of at least 0 is on average, of which `value` was measured with this error."""
    from scipy.stats import norm

    if not error > 0:
        return value
    ratio = max(value / error, -8.0)
    return float(error * (ratio + norm.pdf(ratio) / norm.cdf(ratio)))


def _growth(apart: Floats, beyond: Floats, known: Floats, *, level: bool) -> Floats:
    """(E) slopes of `beyond` over the steps between two batches, through 0 or through a level above
    it, which batches differ by however near they are.
    """
    middle = (known @ apart) / known.sum() if level else 0.0
    slopes = (known * (apart - middle)) @ beyond / (known @ (apart - middle) ** 2)
    begins = (known @ beyond) / known.sum() - slopes * middle
    if level and not begins.mean() > 0:
        return _growth(apart, beyond, known, level=False)
    return np.asarray(slopes)


def _far_above(values: Floats) -> Bools:
    """Those more than 8 median deviations above the median: chance does not reach that far."""
    middle = np.median(values)
    deviation = 1.48 * np.median(np.abs(values - middle))
    return values > middle + FAR_DEVIATIONS * deviation
