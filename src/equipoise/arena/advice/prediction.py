"""The imbalance that a rule will leave, step by step, from the evidence of a layer.

Two moments of the error e = p - p* are followed: its mean m, since trainings begin at p = 0, far
from p*, and its variance v, since batches scatter and p* drifts. Loads of the mean are those of the
recorded tokens under p* + m; around it they are linear (evidence.py).

    deepseek     m += u E[sign]      E[sign] = erf(gap / sqrt(2 var)),  var_k = C_kk + (s_k T)^2 v_k
                 v' = (1 - 2 u g) v + u^2 (1 - E[sign]^2) + q^2,        g = d E[sign] / de
    the others   m += a_n gap        v' = (1 - a_n lambda)^2 v + a_n^2 C + q^2, by the modes of H

The imbalance of a step is then the mean of |N(gap, var)| / L over experts. At m = 0 and with
g = sqrt(2/pi) s T / sigma the first is the sign rule's steady state,
v = (u^2 + q^2) / (2 u g), least at u = q.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.special import erf

from equipoise.arena.advice.evidence import LayerEvidence
from equipoise.optimum.arrays import Floats
from equipoise.optimum.topk import top_k_loads

RULES = ("deepseek", "proportional", "inverse", "inverse_sqrt")
"""those whose rate can be advised: they add a multiple of the gap, or its sign"""
MOST_TOKENS = 2048
"""of the recorded batch that loads of the mean are counted on"""
_EXACT_STEPS, _LATER_POINTS, _STRIDES = 200, 30, 8
"""steps that are followed one by one, points at which the imbalance is looked at after them, and
strides between two points"""


@dataclass(frozen=True)
class Forecast:
    """The imbalance of some steps of a training."""

    steps: Floats
    imbalance: Floats

    @property
    def steady(self) -> float:
        """Mean over the last third of the steps."""
        return float(self.imbalance[self.steps > 2 / 3 * self.steps[-1]].mean())

    @property
    def settles_after(self) -> int:
        """The first step from which the imbalance stays within a quarter of the steady one."""
        above = np.flatnonzero(self.imbalance > 1.25 * self.steady)
        return int(self.steps[above[-1]]) if above.size else 0


def forecast(layer: LayerEvidence, rule: str, rate: float, steps: int) -> Forecast:
    """What `rule` at this rate will leave over a training of `steps` steps from p = 0.

    Args:
        layer: the evidence.
        rule: one of RULES.
        rate: its update_rate.
        steps: of the training.
    """
    error = (SignError if rule == "deepseek" else LinearError)(layer, rule, rate)
    looked_at = _points(steps)
    found, at = [], 0
    for step in looked_at:
        error.advance(at, int(step))
        at = int(step)
        found.append(error.imbalance())
    return Forecast(looked_at, np.array(found))


def _points(steps: int) -> Floats:
    """Every step at first, then ever fewer; many of the last third."""
    early = np.arange(min(steps, _EXACT_STEPS))
    late = np.geomspace(_EXACT_STEPS, max(steps, _EXACT_STEPS), _LATER_POINTS)
    last = np.linspace(2 * steps / 3, steps - 1, _LATER_POINTS)
    points = np.concatenate([early, late, last]).astype(np.int64)
    return np.unique(np.minimum(points, steps - 1))


class _Error(ABC):
    """Mean and variance of p - p* after some steps."""

    def __init__(self, layer: LayerEvidence, rule: str, rate: float) -> None:
        self.layer, self.rule, self.rate = layer, rule, rate
        self.tokens = np.ascontiguousarray(layer.scores[:MOST_TOKENS], np.float32)
        self.mean = -layer.optimum
        self.variance = np.zeros(layer.optimum.size)
        self.noise = np.diag(layer.noise)
        self.gap = self._gap()

    def _gap(self) -> Floats:
        """(E) L - A of the mean, 0 once it is below what can be seen of it."""
        layer = self.layer
        shift = (layer.optimum + self.mean).astype(np.float32)
        loads = top_k_loads(self.tokens, shift, layer.top_k) * (layer.tokens / len(self.tokens))
        gap = layer.target - loads
        # one recorded batch knows the gap no better than its own scatter
        if np.abs(gap).mean() < 0.05 * np.sqrt(self.noise).mean():
            self.mean, gap = np.zeros_like(gap), np.zeros_like(gap)
        return gap

    def advance(self, done: int, until: int) -> None:
        """Make the steps up to `until`, in at most 8 strides over which loads hardly change."""
        stride = max(1, -(-(until - done) // _STRIDES))
        while done < until:
            count = min(stride, until - done)
            moved = self.take_steps(done + 1, count)
            # a stride must not carry the mean across p*
            across = np.sign(self.mean + moved) != np.sign(self.mean)
            self.mean = np.where(across & (count > 1), 0.0, self.mean + moved)
            if self.mean.any():
                self.gap = self._gap()
            done += count

    @abstractmethod
    def take_steps(self, n: int, count: int) -> Floats:
        """The variance after steps n to n + count - 1; gives (E) how far the mean moves."""

    @abstractmethod
    def load_variance(self) -> Floats:
        """(E) of a batch's loads around those of the mean."""

    def imbalance(self) -> float:
        """Mean over experts of E|N(gap, variance)| / L."""
        deviation = np.sqrt(self.load_variance())
        ratio = self.gap / deviation
        folded = np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + ratio * erf(ratio / np.sqrt(2))
        return float((deviation * folded / self.layer.target).mean())


class SignError(_Error):
    """Of deepseek: every expert by itself."""

    def load_variance(self) -> Floats:
        slope = self.layer.flip_density * self.layer.tokens
        # no load is off by more than all of its target, whatever the linear form says
        return self.noise + np.minimum(slope**2 * self.variance, self.layer.target**2)

    def take_steps(self, n: int, count: int) -> Floats:
        layer, u, spread = self.layer, self.rate, self.load_variance()
        sign = erf(self.gap / np.sqrt(2 * spread))
        slope = layer.flip_density * layer.tokens
        gain = np.sqrt(2 / np.pi / spread) * slope * np.exp(-(self.gap**2) / (2 * spread))
        kept = np.maximum(1 - 2 * u * gain, 0.0)
        added = u**2 * (1 - sign**2) + layer.drift**2
        self.variance = _repeated(self.variance, kept, added, count)
        return count * u * sign * (self.gap != 0)


class LinearError(_Error):
    """Of rules that add a multiple of the gap: modes of D^(1/2) H D^(1/2), D the step sizes."""

    def __init__(self, layer: LayerEvidence, rule: str, rate: float) -> None:
        super().__init__(layer, rule, rate)
        unit = layer.target if rule == "proportional" else np.full(self.mean.size, layer.tokens)
        self.step_size = 1 / unit
        root = np.sqrt(self.step_size)
        self.curvature, modes = np.linalg.eigh(root[:, None] * layer.hessian * root)
        scaled = root[:, None] * layer.noise * root
        self.mode_noise = np.einsum("im,ij,jm->m", modes, scaled, modes)
        self.mode_drift = ((modes**2).T @ (layer.drift**2 / self.step_size)).clip(0)
        self.loads_of_modes = ((layer.hessian * root) @ modes) ** 2
        most = self.loads_of_modes.max(0)
        # where steps are too long the linear form grows without end, and loads do not
        limit = (layer.target**2).mean()
        self.most = np.divide(limit, most, out=np.zeros_like(most), where=most > 1e-12 * most.max())

    def load_variance(self) -> Floats:
        return self.noise + self.loads_of_modes @ self.variance

    def take_steps(self, n: int, count: int) -> Floats:
        power = {"proportional": 0.0, "inverse": 1.0, "inverse_sqrt": 0.5}[self.rule]
        size = self.rate / (n + (count - 1) / 2) ** power
        kept = (1 - size * self.curvature) ** 2
        added = size**2 * self.mode_noise + self.mode_drift
        self.variance = np.minimum(_repeated(self.variance, kept, added, count), self.most)
        return count * size * self.step_size * self.gap


def _repeated(variance: Floats, kept: Floats, added: Floats, count: int) -> Floats:
    """v after `count` times v = kept v + added."""
    if count == 1:
        return kept * variance + added
    # a factor above 1 grows beyond all limits, which callers set
    power = np.minimum(kept, 4.0) ** min(count, 64) if (kept > 1).any() else kept**count
    rest = np.where(np.abs(1 - kept) < 1e-12, count, (1 - power) / np.where(kept == 1, 1, 1 - kept))
    return power * variance + rest * added
