"""Choices sorted by expert, so that each expert multiplies one contiguous block."""

from __future__ import annotations

import torch
from torch import Tensor


def sort_on_host(experts: Tensor, num_experts: int) -> tuple[Tensor, list[int]]:
    """The choices t*K + k in the order of their experts (S,), and how many each expert has. Those
    without come last.
    """
    chosen = experts.flatten()
    counts = torch.bincount(chosen, minlength=num_experts + 1).tolist()
    if len(counts) > num_experts + 1:
        raise ValueError(
            f"experts holds the index {len(counts) - 1}, but there are {num_experts} experts: 0 to "
            f"{num_experts - 1}, and {num_experts} for none"
        )
    return chosen.argsort(stable=True), counts[:num_experts]


def summing_dtype(tensor: Tensor) -> torch.dtype:
    """Where K rows are added one after the other, bf16 would round K times."""
    return torch.promote_types(tensor.dtype, torch.float32)
