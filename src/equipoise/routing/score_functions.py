"""Score functions: from a router's logits (..., E) to scores, all positive, all in float32.

The scores are what the paper calls the affinities gamma. They are computed in float32 whatever the
model's dtype: bf16 has three significant digits, and the choice between the K-th and the next
expert turns on the fifth.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.storage.suggestions import did_you_mean

LEAST_SOFTPLUS = torch.finfo(torch.float32).tiny
"""what `sqrt_softplus` takes the root of at least"""


def softmax(logits: Tensor) -> Tensor:
    """exp(z_k) / sum_l exp(z_l): the paper's eq. 1. A token's scores sum to 1."""
    return F.softmax(logits.float(), dim=-1)


def sigmoid(logits: Tensor) -> Tensor:
    """1 / (1 + exp(-z_k)): DeepSeek-V3. A token's scores are independent of each other."""
    return logits.float().sigmoid()


def sqrt_softplus(logits: Tensor) -> Tensor:
    """sqrt(log(1 + exp(z_k))): DeepSeek-V4. Not bounded by 1."""
    # softplus underflows to 0 below -104, where the root has no slope: a gradient of NaN
    return F.softplus(logits.float()).clamp_min(LEAST_SOFTPLUS).sqrt()


SCORE_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "sqrt_softplus": sqrt_softplus,
}


def score_function(name: str) -> Callable[[Tensor], Tensor]:
    """The score function of this name: softmax, sigmoid or sqrt_softplus.

    Args:
        name: of the function, from logits (..., E) to scores of the same shape.

    Example:
        >>> equipoise.score_function("sigmoid")(torch.zeros(2))
        tensor([0.5000, 0.5000])
    """
    if not isinstance(name, str):
        raise TypeError(f"a score function is named by a string such as 'sigmoid', not {name!r}")
    key = name.replace("-", "_")
    if key not in SCORE_FUNCTIONS:
        raise ValueError(
            f"no score function {name!r}{did_you_mean(key, SCORE_FUNCTIONS)}: there are "
            f"{', '.join(SCORE_FUNCTIONS)}"
        )
    return SCORE_FUNCTIONS[key]
