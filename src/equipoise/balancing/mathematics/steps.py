"""What rules do to a step (E,), one function each; step sizes; and what it means to add a step.

Functions that remember take the memory (E,) and return the new one with the step.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_SHIFT = 16.0
"""of the hypentropy's: scores in [0, 1] are far below"""
LEAST_PRICE = 1e-5
"""of the mean price of a simplex: a hundred times what float32 can tell from no price"""


def sign_step(step: Tensor) -> Tensor:
    """-1, 0 or 1: on which side a load is off, not how far (the paper's eq. 3)."""
    return step.sign()


def tanh_step(step: Tensor, sharpness: float) -> Tensor:
    """tanh(sharpness * step): the sign far away, proportional nearby."""
    return (sharpness * step).tanh()


def centered_step(step: Tensor) -> Tensor:
    """Minus its mean: the projection on the zero-sum space (the paper's Remark 15)."""
    # the mean in float64: then its last digit does not depend on the order of the experts
    return step - step.double().mean().to(step.dtype)


def clipped_step(step: Tensor, most: float) -> Tensor:
    """No coordinate beyond `most`."""
    return step.clamp(-most, most)


def ema_step(memory: Tensor, step: Tensor, decay: float) -> Tensor:
    """decay m + (1 - decay) step: the new memory, which is the step too."""
    return memory.lerp(step, 1 - decay)


def momentum_step(memory: Tensor, step: Tensor, decay: float) -> Tensor:
    """decay m + step (heavy ball): the new memory, which is the step too."""
    return memory * decay + step


def adagrad_step(squares: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of squares so far, and the step divided by its root: the unit of the step cancels."""
    squares = squares + step.square()
    norm = squares.sqrt()
    return squares, torch.where(norm > 0, step / norm, 0.0)


def inverse_size(rate: float, n: Tensor) -> Tensor:
    """u / n at the n-th update: the paper's choice for its regret bound (Theorem 17)."""
    return rate / n


def inverse_sqrt_size(rate: float, n: Tensor) -> Tensor:
    """u / sqrt(n): the paper's lowest validation loss (its Table 1)."""
    return rate / n.sqrt()


def euclidean_move(shift: Tensor, step: Tensor) -> Tensor:
    """shift + step."""
    return shift + step


def hypentropy_move(shift: Tensor, step: Tensor, width: float) -> Tensor:
    """width * sinh(asinh(shift / width) + step), opened up so that a step of 0 gives back the shift
    to the last digit.

    It is multiplicative far from 0, and one step on one side after the other would end in infinity.
    So no step leads further than MOST_SHIFT; nor is one longer than from there to the other side.
    """
    most = shift.abs().clamp_min(MOST_SHIFT)
    longest = 2 * (most / width).asinh()
    step = torch.maximum(torch.minimum(step, longest), -longest)
    moved = shift * step.cosh() + (shift.square() + width**2).sqrt() * step.sinh()
    return torch.maximum(torch.minimum(moved, most), -most)


def simplex_move(shift: Tensor, step: Tensor, mean: float, shares: Tensor) -> Tensor:
    """Prices mean - shift times exp(-step), brought back to their mean weighted by `shares`.

    float32 keeps mean - price, not the price: one below LEAST_PRICE of the mean would be rounding
    and never rise again.
    """
    least = LEAST_PRICE * mean
    logs = (mean - shift.double()).clamp_min(least).log() - step
    prices = mean * (logs - (logs + shares.log()).logsumexp(0)).exp()
    moved = (mean - prices.clamp_min(least)).to(shift.dtype)
    return torch.where(step.ne(0).any(), moved, shift)
