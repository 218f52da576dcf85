"""How far curvature trusts one batch: a gain that finds itself.

The optimum wanders (the router learns) and each batch shows it through sampling noise: that is the
setting of the Kalman filter, whose gain is right when residuals are uncorrelated with all earlier
ones. So the logarithm of the lasting gain moves by that correlation (docs/curvature.md). Experts
whose shift was just set by a flip, and batches that surprise, have greater gains for a while.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.balancing.mathematics.curvature_state import CurvatureState, remember
from equipoise.balancing.mathematics.evidence import USUAL_MEMORY
from equipoise.balancing.mathematics.laplacian import LEAST_DIVISOR

# of log gain: by standard error of the correlation, and at most by the correlation itself
_GAIN_RATE, _MOST_GAIN_RATE = 1 / 8, 1.0
# leaves sqrt(1 + g / (2 - g)) = 1.0025 times what chance does, and is soon left when drift begins
_LEAST_LASTING_GAIN = 0.01
# of the trail: of a longer one, old noise hides what has just begun
_TRAIL = 0.8
MOST_FLIP_TRUST = 16.0
"""above 1: four flips back in a row cost nothing, since the first ones of a stream may overshoot"""
_LEAST_FLIP_TRUST = 1 / 64


def next_gain(state: CurvatureState, gap: Tensor, newton: Tensor, size: Tensor) -> CurvatureState:
    """The lasting gain moves by the correlation of this residual with the trail of those before."""
    square = (gap * newton).sum().clamp_min(0)
    trail_square = (state.trail_gap.double() * state.trail_step).sum().clamp_min(0)
    comparable = (square > 0) & (trail_square > 0)
    correlation = (gap * state.trail_step).sum() / (square * trail_square).sqrt()
    rate = _gain_rate(len(gap)) * size.clamp_max(1)
    moved = (state.gain * (rate * correlation).exp()).clamp(_LEAST_LASTING_GAIN, 1.0)
    return remember(state, gain=torch.where(comparable, moved, state.gain))


def surprise_gain(
    state: CurvatureState, gap: Tensor, noise: Tensor, far: Tensor
) -> tuple[CurvatureState, Tensor]:
    """A gain for this step alone, where the residual is far larger than usual."""
    ratio = gap.square().sum() / noise.sum().clamp_min(LEAST_DIVISOR)
    usual = torch.where(state.usual > 0, state.usual.double(), ratio)
    seen = USUAL_MEMORY * usual + (1 - USUAL_MEMORY) * torch.minimum(ratio, 4 * usual)
    surprise = (1 - _surprising_ratio(len(gap)) * usual / ratio.clamp_min(LEAST_DIVISOR)).clamp(
        0.0, 1.0
    )
    return remember(state, usual=torch.where(far.all(), state.usual, seen)), surprise


def step_gains(
    state: CurvatureState, surprise: Tensor, size: Tensor, far: Tensor
) -> tuple[CurvatureState, Tensor]:
    """(E,): the gains for this step. The lasting one is for a batch of the usual size.

    In units of a usual batch's noise this batch has variance 1 / size. A shift of variance P then
    takes the gain P / (P + 1 / size), and has variance gain / size after it: the Kalman filter's
    own recursion. A flip step is gain 1.
    """
    # P = g / (1 - g)
    lasting = state.gain * size / (state.gain * size + 1 - state.gain)
    gains = torch.maximum(lasting, state.doubt * size / (state.doubt * size + 1))
    gains = torch.maximum(gains, surprise)
    return remember(state, doubt=torch.where(far, 1.0, gains) / size), gains


def follow_trail(
    state: CurvatureState, gap: Tensor, newton: Tensor, gains: Tensor, size: Tensor, far: Tensor
) -> CurvatureState:
    """The trail: how the shift would differ had gains been greater, d shift / d log g up to a
    factor.
    """
    keep = torch.where(far.all(), 0.0, _TRAIL * (1 - gains))
    return remember(
        state,
        trail_gap=keep * state.trail_gap + size * gap,
        trail_step=torch.where(far, 0.0, keep * state.trail_step + size * newton),
    )


def trust_flips(state: CurvatureState, move: Tensor, far: Tensor) -> tuple[CurvatureState, Tensor]:
    """(E,): the flip moves, shorter where each has undone the one before.

    A flip goes the whole way to where this batch would be balanced. In a stream that alternates,
    every flip would be wrong for the next batch, and loads worse than without any balancing. So
    trust halves with a flip that turns back, and doubles with anything else.
    """
    turned_back = far & (state.flipped * move < 0)
    trust = torch.where(turned_back, state.flip_trust / 2, state.flip_trust * 2)
    trust = trust.clamp(_LEAST_FLIP_TRUST, MOST_FLIP_TRUST)
    state = remember(state, flip_trust=trust, flipped=torch.where(far, move.sign(), 0.0))
    return state, move * trust.clamp_max(1.0)


def _gain_rate(num_experts: int) -> float:
    """The standard error of a correlation over E - 1 modes is 1 / sqrt(E - 1): many experts can be
    believed sooner.
    """
    return min(_MOST_GAIN_RATE, _GAIN_RATE * math.sqrt(max(num_experts - 1, 1)))


def _surprising_ratio(num_experts: int) -> float:
    """Four standard deviations of a chi-square of E - 1 over its mean, by the cube root of Wilson
    and Hilferty (1931).
    """
    spread = 2 / (9 * max(num_experts - 1, 1))
    return (1 - spread + 4 * math.sqrt(spread)) ** 3
