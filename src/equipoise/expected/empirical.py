"""The expected dual of recorded tokens: any joint law over experts, softmax gates too.

T tokens are drawn independently from the n rows of a batch. Then nothing has to be integrated: at
a shift p, pi_k is the share of rows that choose k, and f(p) is T times the mean over rows of their
K largest shifted scores, less L sum p. The minimiser is that of the assignment program of the rows.

Boundary weights are densities of ties (errata 19): w_kl is the density at 0 of the margin between k
and l over the tokens whose K-th and (K+1)-th experts they are. From n rows it is an estimate: the
share of rows whose margin is at most `reach`, over twice `reach`, since either may be ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from equipoise.expected.dual import laplacian
from equipoise.expected.moments import LoadMoments
from equipoise.optimum.arrays import Floats, Ints
from equipoise.optimum.loop import choose_top_k
from equipoise.optimum.solve import solve

TIE_SHARE = 0.05
"""share of the tokens that are called nearly tied, where no reach is given"""
WIDER_SHARES = (0.1, 0.2, 0.4, 0.8)
"""tried in turn where those leave an expert without a tie"""


@dataclass(frozen=True)
class EmpiricalDual:
    """T tokens drawn from the rows of `scores` (n, E), each choosing K of E experts."""

    scores: Floats
    top_k: int
    num_tokens: int = 1

    @property
    def num_experts(self) -> int:
        return self.scores.shape[1]

    @property
    def target_load(self) -> float:
        """L = K T / E."""
        return self.top_k * self.num_tokens / self.num_experts

    def sample(self, rng: np.random.Generator, tokens: int) -> Floats:
        """(tokens, E) scores."""
        return self.scores[rng.integers(0, len(self.scores), tokens)]

    def at(self, shift: Floats) -> EmpiricalPoint:
        return EmpiricalPoint(self, np.asarray(shift, np.float64))

    def dual(self, shift: Floats) -> float:
        """f(p)."""
        return self.at(shift).dual

    def minimiser(self) -> Floats:
        """p* with sum 0, by the exact solver on as many rows as can be shared out evenly."""
        rows = len(self.scores) - len(self.scores) % self.num_experts
        shift = np.asarray(solve(self.scores[:rows], self.top_k).shift, np.float64)
        return shift - shift.mean()

    def convexity_modulus(self, shift: Floats) -> float:
        """T lambda_2 of the estimated boundary weights; 0 where many tokens are tied exactly.

        Few tokens hesitate about a rare expert, and none may be among those nearly tied: then more
        are called so, until all experts are joined.
        """
        pairs = BoundaryPairs.of(self.scores + shift, self.top_k)
        for share in (TIE_SHARE, *WIDER_SHARES):
            reach = float(np.quantile(pairs.margins, share))
            if reach <= 0:
                return 0.0
            eigenvalues = np.linalg.eigvalsh(laplacian(pairs.weight(self.num_experts, reach)))
            if eigenvalues[1] > 1e-9 * eigenvalues[-1]:
                return self.num_tokens * float(eigenvalues[1])
        return 0.0


@dataclass(frozen=True)
class EmpiricalPoint(LoadMoments):
    """The quantities at one shift."""

    dual_of: EmpiricalDual
    shift: Floats

    @property
    def num_tokens(self) -> int:
        return self.dual_of.num_tokens

    @property
    def top_k(self) -> int:
        return self.dual_of.top_k

    @cached_property
    def selection_probability(self) -> Floats:
        return choose_top_k(self.dual_of.scores + self.shift, self.top_k).mean(0)

    @cached_property
    def dual(self) -> float:
        shifted, E = self.dual_of.scores + self.shift, self.shift.size
        largest = np.partition(shifted, E - self.top_k, axis=1)[:, E - self.top_k :]
        worth = self.num_tokens * largest.sum(1).mean()
        return float(worth - self.dual_of.target_load * self.shift.sum())


@dataclass(frozen=True)
class BoundaryPairs:
    """The K-th and (K+1)-th expert of each token, and the margin between them."""

    chosen: Ints
    left_out: Ints
    margins: Floats

    @classmethod
    def of(cls, shifted: Floats, top_k: int) -> BoundaryPairs:
        """K must be below E."""
        order = np.argpartition(-shifted, (top_k - 1, top_k), axis=1)
        chosen, left_out = order[:, top_k - 1], order[:, top_k]
        rows = np.arange(len(shifted))
        return cls(chosen, left_out, shifted[rows, chosen] - shifted[rows, left_out])

    @property
    def usual_reach(self) -> float:
        """The margin that TIE_SHARE of the tokens do not exceed."""
        return float(np.quantile(self.margins, TIE_SHARE))

    def weight(self, experts: int, reach: float) -> Floats:
        """(E, E) w, symmetric."""
        near = self.margins <= reach
        counts = np.zeros((experts, experts))
        np.add.at(counts, (self.chosen[near], self.left_out[near]), 1.0)
        return (counts + counts.T) / (2 * len(self.margins) * reach)

    def curvatures(self, direction: Floats, reach: float) -> Floats:
        """(n) whose mean is sum_{k<l} w_kl (d_k - d_l)^2 (eq. 31), by tokens."""
        apart = direction[self.chosen] - direction[self.left_out]
        return np.where(self.margins <= reach, apart**2, 0.0) / (2 * reach)
