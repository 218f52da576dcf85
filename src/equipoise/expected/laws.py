"""Laws of scores (sec. 5.2): independent experts, each with a bounded density on (0, 1).

A law answers for all E experts at once: `x` has shape (..., E), one column per expert, and so have
the answers. `below` and `above` are the distribution function and its complement, each computed
without subtracting from 1 where that loses digits. `corners` are the points (E, C) where a density
or its slope jumps: quadrature puts its panels between them. NaN is none.

Independence between experts is the paper's stylisation. Sigmoid gates can have it; softmax gates
cannot (their rows sum to 1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from equipoise.optimum.arrays import Floats, Ints


class Law(ABC):
    """The scores of one token: E independent numbers in (0, 1)."""

    corners: Floats

    @property
    def num_experts(self) -> int:
        return len(self.corners)

    @abstractmethod
    def density(self, x: Floats) -> Floats: ...

    @abstractmethod
    def below(self, x: Floats) -> Floats:
        """P(score <= x)."""

    @abstractmethod
    def above(self, x: Floats) -> Floats:
        """P(score > x)."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, tokens: int) -> Floats:
        """(T, E) scores."""

    @property
    def positive_density(self) -> bool:
        """Whether every expert's density is positive on all of (0, 1), which c_K > 0 needs (errata
        17). True of the log-concave laws here.
        """
        return True

    def least_density(self, low: Floats, high: Floats) -> Floats:
        """The least density between `low` and `high`: of a log-concave law, at one of them."""
        return np.minimum(self.density(low), self.density(high))

    @property
    def scale(self) -> float:
        """The least distance between an expert's quartiles: far below it, densities are linear."""
        return float((self.quantile(0.75) - self.quantile(0.25)).min())

    def quantile(self, share: float) -> Floats:
        """(E) the scores that `share` of an expert's tokens lie below, by bisection."""
        low, high = np.zeros(self.num_experts), np.ones(self.num_experts)
        for _ in range(60):
            middle = (low + high) / 2
            under = self.below(middle) < share
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return (low + high) / 2


class Uniform(Law):
    """Uniform on (0, 1)."""

    def __init__(self, num_experts: int) -> None:
        self.corners = np.tile([0.0, 1.0], (num_experts, 1))

    def density(self, x: Floats) -> Floats:
        return ((x > 0) & (x < 1)).astype(np.float64)

    def below(self, x: Floats) -> Floats:
        return np.clip(x, 0, 1)

    def above(self, x: Floats) -> Floats:
        return np.clip(1 - x, 0, 1)

    def sample(self, rng: np.random.Generator, tokens: int) -> Floats:
        return rng.random((tokens, self.num_experts))


class Beta(Law):
    """Beta(a_k, b_k), with a, b >= 1: below that the density is not bounded."""

    def __init__(self, a: ArrayLike, b: ArrayLike) -> None:
        self.a, self.b = (
            np.array(each, np.float64)
            for each in np.broadcast_arrays(np.atleast_1d(a), np.atleast_1d(b))
        )
        if min(self.a.min(), self.b.min()) < 1:
            raise ValueError(
                "a beta density with a or b below 1 is not bounded, which the theory needs: take "
                "a, b >= 1"
            )
        # x^(a-1) has a continuous slope at 0 from a = 3 on
        self.corners = np.stack(
            [np.where(self.a < 3, 0.0, np.nan), np.where(self.b < 3, 1.0, np.nan)], 1
        )

    def density(self, x: Floats) -> Floats:
        inside = np.clip(x, 0, 1)
        log = (
            special.xlogy(self.a - 1, inside)
            + special.xlog1py(self.b - 1, -inside)
            - special.betaln(self.a, self.b)
        )
        return np.where((x > 0) & (x < 1), np.exp(log), 0.0)

    def below(self, x: Floats) -> Floats:
        return special.betainc(self.a, self.b, np.clip(x, 0, 1))

    def above(self, x: Floats) -> Floats:
        return special.betainc(self.b, self.a, np.clip(1 - x, 0, 1))

    def sample(self, rng: np.random.Generator, tokens: int) -> Floats:
        return rng.beta(self.a, self.b, (tokens, self.num_experts))


class TruncatedNormal(Law):
    """N(mean_k, std_k^2) given that it lies in (0, 1)."""

    def __init__(self, mean: ArrayLike, std: ArrayLike) -> None:
        pair = np.broadcast_arrays(np.atleast_1d(mean), np.atleast_1d(std))
        self.mean, self.std = (np.array(each, np.float64) for each in pair)
        if self.std.min() <= 0:
            raise ValueError("std must be positive")
        self.inside = special.ndtr((1 - self.mean) / self.std) - special.ndtr(-self.mean / self.std)
        if self.inside.min() < 1e-9:
            raise ValueError(
                "a normal has almost nothing in (0, 1): bring its mean closer or take a greater std"
            )
        self.corners = np.tile([0.0, 1.0], (self.mean.size, 1))

    def density(self, x: Floats) -> Floats:
        z = (x - self.mean) / self.std
        height = np.exp(-z * z / 2) / (np.sqrt(2 * np.pi) * self.std * self.inside)
        return np.where((x > 0) & (x < 1), height, 0.0)

    def below(self, x: Floats) -> Floats:
        z = (np.clip(x, 0, 1) - self.mean) / self.std
        return np.clip((special.ndtr(z) - special.ndtr(-self.mean / self.std)) / self.inside, 0, 1)

    def above(self, x: Floats) -> Floats:
        z = (np.clip(x, 0, 1) - self.mean) / self.std
        return np.clip(
            (special.ndtr(-z) - special.ndtr((self.mean - 1) / self.std)) / self.inside, 0, 1
        )

    def sample(self, rng: np.random.Generator, tokens: int) -> Floats:
        start = special.ndtr(-self.mean / self.std)
        return self.mean + self.std * special.ndtri(
            start + self.inside * rng.random((tokens, self.num_experts))
        )


class Histogram(Law):
    """Any empirical law: the density is constant within bins. `counts` (E, B), `edges` (B+1), the
    same for all experts.
    """

    def __init__(self, counts: ArrayLike, edges: ArrayLike) -> None:
        counts, self.edges = np.asarray(counts, np.float64), np.asarray(edges, np.float64)
        if (
            counts.ndim != 2
            or self.edges.shape != (counts.shape[1] + 1,)
            or not (np.diff(self.edges) > 0).all()
        ):
            raise ValueError(
                f"counts are (E, B) and edges (B+1), growing; not {counts.shape} and "
                f"{self.edges.shape}"
            )
        if self.edges[0] < 0 or self.edges[-1] > 1:
            raise ValueError("scores lie in (0, 1), so edges must too")
        if counts.min() < 0 or counts.sum(1).min() <= 0:
            raise ValueError("every expert needs some counts, and none negative")
        share = counts / counts.sum(1, keepdims=True)
        self._height = share / np.diff(self.edges)
        self._below = np.pad(share.cumsum(1), ((0, 0), (1, 0)))
        self._above = np.pad(share[:, ::-1].cumsum(1)[:, ::-1], ((0, 0), (0, 1)))
        self.corners = np.tile(self.edges, (len(counts), 1))

    @classmethod
    def of(cls, scores: ArrayLike, bins: int = 64) -> Histogram:
        """The law of recorded scores (n, E)."""
        scores = np.asarray(scores, np.float64)
        edges = np.linspace(max(scores.min(), 0.0), min(scores.max(), 1.0), bins + 1)
        return cls(np.stack([np.histogram(column, edges)[0] for column in scores.T]), edges)

    @property
    def positive_density(self) -> bool:
        spans = self.edges[0] <= 0 and self.edges[-1] >= 1
        return bool(spans and self._height.min() > 0)

    def least_density(self, low: Floats, high: Floats) -> Floats:
        first, last = self._place_in_bin(low)[0], self._place_in_bin(high)[0]
        bins = np.arange(self.edges.size - 1)
        inside = (bins >= first[..., None]) & (bins <= last[..., None])
        least = np.where(inside, self._height, np.inf).min(-1)
        return np.where((low > self.edges[0]) & (high < self.edges[-1]), least, 0.0)

    def density(self, x: Floats) -> Floats:
        bin, _ = self._place_in_bin(x)
        inside = (x > self.edges[0]) & (x < self.edges[-1])
        return np.where(inside, self._height[self._experts, bin], 0.0)

    def below(self, x: Floats) -> Floats:
        bin, into = self._place_in_bin(x)
        return self._below[self._experts, bin] + self._height[self._experts, bin] * into

    def above(self, x: Floats) -> Floats:
        bin, into = self._place_in_bin(x)
        left = np.diff(self.edges)[bin] - into
        return self._above[self._experts, bin + 1] + self._height[self._experts, bin] * left

    def sample(self, rng: np.random.Generator, tokens: int) -> Floats:
        share = np.diff(self._below, axis=1)
        bins = np.stack(
            [rng.choice(share.shape[1], tokens, p=each / each.sum()) for each in share], 1
        )
        return self.edges[bins] + np.diff(self.edges)[bins] * rng.random(bins.shape)

    @property
    def _experts(self) -> Ints:
        return np.arange(self.num_experts)

    def _place_in_bin(self, x: Floats) -> tuple[Ints, Floats]:
        """The bin of x, and how far into it."""
        x = np.clip(x, self.edges[0], self.edges[-1])
        bin = np.clip(np.searchsorted(self.edges, x, side="right") - 1, 0, self.edges.size - 2)
        return bin, x - self.edges[bin]
