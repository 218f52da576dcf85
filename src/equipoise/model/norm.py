"""RMSNorm: x / root mean square of x, times a weight (Zhang and Sennrich 2019).

torch has a fast kernel for it on GPUs. On the CPU it is a chain of operations, each with a tensor
of its own to write, and takes two to three times as long, forward and backward, as the few passes
here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        # squares of float16 overflow at 256
        precise = hidden.dtype == self.weight.dtype and hidden.element_size() >= 4
        if hidden.device.type == "cpu" and precise:
            return _RMSNorm.apply(hidden, self.weight, self.epsilon)
        return F.rms_norm(hidden, self.weight.shape, self.weight, self.epsilon)


class _RMSNorm(torch.autograd.Function):
    """With n = x / rms, g the gradient of y and w the weight:

    dw = sum of g n
    dx = (g w - n mean(g w n)) / rms
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        mean_square = (
            torch.linalg.vector_norm(hidden, dim=-1, keepdim=True).square_().div_(hidden.shape[-1])
        )
        inverse = mean_square.add_(epsilon).rsqrt_()
        normal = hidden * inverse
        ctx.save_for_backward(normal, inverse, weight)
        return normal * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        normal, inverse, weight = ctx.saved_tensors
        each = (grad * normal).flatten(0, -2)
        mean = (each @ weight).view_as(inverse).div_(len(weight))
        d_hidden = (grad * weight).addcmul_(normal, mean, value=-1).mul_(inverse)
        return d_hidden, each.sum(0), None
