"""How much a batch says against the usual one. Batches may differ: the last of an epoch, a packed
one, one that is nearly all padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

USUAL_MEMORY = 0.9
"""of what is usual"""


def usual_size(usual: Tensor, tokens: Tensor) -> Tensor:
    """() float64: the usual number of tokens, this batch's included; `usual` is 0 at first."""
    before = torch.where(usual > 0, usual.double(), tokens)
    return USUAL_MEMORY * before + (1 - USUAL_MEMORY) * tokens


def evidence_weight(usual: Tensor, tokens: Tensor) -> Tensor:
    """() float64: 1 for a batch of the usual size or more, its share of it for a smaller one.

    `usual` is as it is kept, in float32: batches of one size then weigh exactly 1.
    """
    return (tokens / usual.clamp_min(1)).clamp_max(1.0)
