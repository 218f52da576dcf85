"""Step sizes: how far to go at the n-th update, n = 1, 2, ... They take and return tensors, so that no GPU waits."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

StepSize = Callable[[Tensor], Tensor]


def inverse(update_rate: float) -> StepSize:
    """u / n: the paper's choice for its regret bound (Theorem 17)."""
    return lambda n: update_rate / n


def inverse_sqrt(update_rate: float) -> StepSize:
    """u / sqrt(n): the paper's lowest validation loss (its Table 1)."""
    return lambda n: update_rate / n.sqrt()
