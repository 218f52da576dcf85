"""Churn: what an update sends elsewhere.

Tokens that move between experts cost a model its specialists, and a replayed or cached choice its
truth. The order of a token's experts does not matter: only who is among them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.routing.route import check_mask


def changed_choices(before: Tensor, after: Tensor) -> Tensor:
    """How many of each token's K experts are others than before: (T,) int64.

    Args:
        before: (T, K) chosen experts, in any order.
        after: (T, K) those of the same tokens.

    Example:
        >>> changed_choices(torch.tensor([[0, 1], [2, 3]]), torch.tensor([[1, 0], [2, 4]])).tolist()
        [0, 1]
    """
    if before.shape != after.shape or before.dim() != 2:
        raise ValueError(
            f"the choices before and after must be (tokens, top_k) of the same tokens, not "
            f"{tuple(before.shape)} and {tuple(after.shape)}"
        )
    same = before.unsqueeze(2) == after.unsqueeze(1)
    lost, gained = ((~same.any(axis)).sum(1) for axis in (2, 1))
    # they differ only where empty choices, all marked alike, are more on one side
    return torch.maximum(lost, gained)


def churn(before: Tensor, after: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The share of tokens of which any expert is another than before: () float64.

    The share of *choices* is `changed_choices(before, after).sum()` over T K: up to K times less.

    Args:
        before: (T, K) chosen experts, such as `Routing.experts` before an update.
        after: (T, K) those of the same tokens, after it.
        mask: (T,) bool, True for padding, which is left out.

    Example:
        >>> float(churn(torch.tensor([[0, 1], [2, 3]]), torch.tensor([[1, 0], [2, 4]])))
        0.5
    """
    switched = changed_choices(before, after) > 0
    if mask is None:
        counted, total = switched, torch.as_tensor(len(switched), dtype=torch.float64)
    else:
        check_mask(mask, before.shape[:1])
        counted, total = switched & ~mask, (~mask).sum()
    return counted.sum().double() / total.double().clamp_min(1.0)
