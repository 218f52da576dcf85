"""Step sizes: how far to go at the n-th update, n = 1, 2, ...

They take and return tensors, so that no GPU waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from torch import Tensor

from equipoise.balancing.mathematics.steps import inverse_size, inverse_sqrt_size

StepSize = Callable[[Tensor], Tensor]


def inverse_steps(update_rate: float) -> StepSize:
    """u / n: the paper's choice for its regret bound (Theorem 17)."""
    # not a lambda: balancers are pickled, saved whole and sent to other processes
    return partial(inverse_size, checked_rate(update_rate))


def inverse_sqrt_steps(update_rate: float) -> StepSize:
    """u / sqrt(n): the paper's lowest validation loss (its Table 1)."""
    return partial(inverse_sqrt_size, checked_rate(update_rate))


def checked_rate(value: float) -> float:
    """The same, if it is one: YAML reads 1e-3 as text, and NaN would spread over all shifts."""
    if isinstance(value, str) or not 0 <= value < math.inf:
        raise ValueError(f"a rate must be a finite number, 0 or more, not {value!r}")
    return value
