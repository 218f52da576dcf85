"""LayerBalance: what is known of one layer's step, whoever counted it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.routing import Groups, churn, route


@dataclass(frozen=True, eq=False)
class LayerBalance:
    """One layer's step. What is None is not known, and is left out of means."""

    loads: Tensor
    """(E,) over the whole batch"""
    top_k: int | None = None
    """experts a token takes; the floor needs it"""
    target: Tensor | Sequence[float] | None = None
    """(E,) weights of the target loads; None: equal"""
    idle_share: float | None = None
    """time lost waiting for the fullest device"""
    switched: float | None = None
    """share of tokens whose experts the last update changed"""


@torch.no_grad()
def switched_share(
    scores: Tensor,
    top_k: int,
    before: Tensor,
    after: Tensor,
    *,
    groups: Groups | tuple[int, int] | None = None,
) -> float:
    """The share of tokens that take other experts after an update: their churn.

    Args:
        scores: (..., E) of some tokens, unshifted.
        top_k: experts a token takes.
        before, after: (E,) the shift before and after the update.
        groups: (number, keep) under group-limited routing.

    Example:
        >>> scores = torch.tensor([[0.6, 0.4], [0.9, 0.1]])
        >>> switched_share(scores, 1, torch.zeros(2), torch.tensor([0.0, 0.3]))
        0.5
    """
    if not scores.numel():
        return 0.0
    sets = [
        route(scores, top_k, shift=shift, groups=groups, runner_up=False).experts
        for shift in (before.to(scores), after.to(scores))
    ]
    return float(churn(*sets))
