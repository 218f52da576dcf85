"""Geometry: what it means to take a step from a shift.

Mirror descent (Balseiro, Lu and Mirrokni 2020) steps in the image of the shift under the gradient
of a convex function h:

    grad h(p') = grad h(p) + step

h = |p|^2 / 2 gives p + step. The hypentropy h(x) = x asinh(x/b) - sqrt(x^2 + b^2) (Ghai, Hazan and
Singer 2020) has grad h = asinh(x/b): steps of b near 0, and multiplicative ones far away, for
shifts of either sign. The usual entropy would hold a shift on the side of 0 where it began.

Regularised allocation (Balseiro, Lu and Mirrokni 2021) does not ask for even loads at any price: it
pays for the greatest relative load z, one of it `weight` of score a token,

    maximise  sum_i gamma_i x_i - weight T z    with  A_k <= z L_k for all experts k.

z is free, so that its dual has prices q >= 0 with sum_k q_k L_k = weight T: their mean, weighted by
the targets, is weight/K. On that simplex the entropy is the natural h, and a step multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from equipoise.balancing.mathematics.steps import (
    euclidean_move,
    hypentropy_move,
    simplex_move,
)

Geometry = Callable[[Tensor, Tensor], Tensor]


def euclidean(shift: Tensor, step: Tensor) -> Tensor:
    """shift + step."""
    return euclidean_move(shift, step)


def hypentropy(width: float) -> Geometry:
    """Additive for shifts below `width`, multiplicative above; none goes beyond 16 in size."""
    if not width > 0:
        raise ValueError(f"width must be positive, not {width}")

    # not a lambda: balancers are pickled, saved whole and sent to other processes
    return partial(hypentropy_move, width=width)


def price_simplex(mean: float, shares: tuple[float, ...]) -> Geometry:
    """Multiplicative steps on prices `mean` - shift, above 0, whose mean weighted by the experts'
    shares of the target stays.
    """
    if not 0 < mean < math.inf:
        raise ValueError(f"weight / top_k must be positive and finite, not {mean}")
    return partial(_move_on_simplex, mean=mean, shares=shares)


def _move_on_simplex(
    shift: Tensor, step: Tensor, *, mean: float, shares: tuple[float, ...]
) -> Tensor:
    # numbers, not a tensor: a geometry is no module, and would not follow its balancer to a device
    return simplex_move(shift, step, mean, shift.new_tensor(shares, dtype=torch.float64))
