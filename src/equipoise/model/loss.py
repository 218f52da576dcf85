"""The loss of the output layer, without ever holding all its logits.

    loss = mean over tokens of  logsumexp(W h) - (W h)[target]

With a vocabulary of 50,257, the logits of one sequence of 4,096 tokens take 0.8 GB, and their
gradient as much. So rows are taken a few at a time, and since the loss is the end of the network,
their gradient

    d loss / d logits = (softmax(logits) - onehot(target)) / tokens

is known at once: each slice of logits is turned into powers in place, multiplied out and forgotten.
Backward only scales.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

SLICE_LOGITS = 2**21
"""How many logits to hold at a time on the CPU: 8 MB, the fastest of 2 to 16 (4,096 tokens,
D = 256). On other devices 16 times as many.
"""
MIN_SLICE_ROWS = 128
"""Rows of a slice at least: each slice reads and writes the whole gradient of the weight."""


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of hidden (..., D) @ weight (V, D)^T against targets (...).

    Under autocast the products are taken in its dtype, and the sums in float32.
    """
    rows, targets = hidden.flatten(0, -2), targets.flatten()
    if len(rows) != len(targets):
        raise ValueError(f"{len(rows)} hidden states for {len(targets)} targets")
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        rows, weight = rows.to(dtype), weight.to(dtype)
    with torch.autocast(device, enabled=False):
        if not torch.is_grad_enabled():
            return _evaluate_only(rows, weight, targets)
        return _LinearCrossEntropy.apply(rows, weight, targets)


def reference_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The slow twin: all logits at once."""
    return F.cross_entropy(F.linear(hidden, weight).float().flatten(0, -2), targets.flatten())


def _evaluate_only(rows: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    size = _slice_size(weight)
    total = rows.new_zeros((), dtype=torch.float32)
    for part, target in zip(rows.split(size), targets.split(size), strict=True):
        total += F.cross_entropy((part @ weight.T).float(), target, reduction="sum")
    return total / len(rows)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        size = _slice_size(weight)
        total = rows.new_zeros((), dtype=torch.float32)
        d_rows = torch.empty_like(rows)
        d_weight = torch.zeros_like(weight, dtype=torch.float32)
        # one buffer for all slices: new memory for each would not be in the cache
        space = rows.new_empty(min(size, len(rows)), len(weight))
        for part, target, d_part in zip(
            rows.split(size), targets.split(size), d_rows.split(size), strict=True
        ):
            logits = torch.mm(part, weight.T, out=space[: len(part)]).float()
            largest = logits.amax(1)
            wanted = logits.gather(1, target.unsqueeze(1)).squeeze(1)
            powers = logits.sub_(largest.unsqueeze(1)).exp_()
            norm = powers.sum(1)
            total += (norm.log() + largest - wanted).sum()
            # softmax = powers / norm, but the division is done on rows of D numbers, not of V
            share = (1 / (norm * len(rows))).unsqueeze(1)
            powers = powers.to(rows.dtype)
            torch.mm(powers, weight, out=d_part)
            d_part.mul_(share).sub_(weight.index_select(0, target), alpha=1 / len(rows))
            _add_product(d_weight, powers.T, (part * share).to(rows.dtype))
            d_weight.index_add_(0, target, part.float(), alpha=-1 / len(rows))
        ctx.save_for_backward(d_rows, d_weight.to(weight.dtype))
        return total / len(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_rows, d_weight = ctx.saved_tensors
        return d_rows * grad, d_weight * grad, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, where total may be more precise."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def _slice_size(weight: Tensor) -> int:
    logits = SLICE_LOGITS if weight.device.type == "cpu" else 16 * SLICE_LOGITS
    return max(MIN_SLICE_ROWS, logits // len(weight))
