"""Geometry: what it means to take a step from a shift.

Mirror descent (Balseiro, Lu and Mirrokni 2020) steps in the image of the shift under the gradient
of a convex function h:

    grad h(p') = grad h(p) + step

h = |p|^2 / 2 gives p + step. The hypentropy h(x) = x asinh(x/b) - sqrt(x^2 + b^2) (Ghai, Hazan and
Singer 2020) has grad h = asinh(x/b): steps of b near 0, and multiplicative ones far away, for
shifts of either sign. The usual entropy would hold a shift on the side of 0 where it began.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from equipoise.balancing.mathematics.steps import euclidean_move, hypentropy_move

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
