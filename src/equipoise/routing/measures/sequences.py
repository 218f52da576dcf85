"""Loads within each part of a batch: its sequences, or the tokens of each rank.

Loads that are even over a batch may be uneven in every sequence of it. That costs where a forward
holds few sequences (inference, long contexts), and where ranks dispatch their own tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.routing.checks import check_choices, is_readable
from equipoise.routing.route import check_mask


def sequence_loads(
    experts: Tensor,
    num_experts: int,
    sequences: int | Tensor,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """The loads of every sequence apart: (S, E) int64.

    Args:
        experts: (T, K) the chosen experts, `Routing.experts`. The number E stands for no expert,
            and is not counted.
        num_experts: E.
        sequences: their length, where all are equally long and follow each other (the last may be
            shorter); or (T,) the number of each token's sequence, from 0. The tokens of ranks,
            or documents that are packed into one row, are given in the same way.
        mask: (T,) bool, True for padding, which is not counted: `Routing.mask`. A sequence of
            nothing else has loads of 0.

    Example:
        >>> experts = torch.tensor([[0], [0], [1], [0]])
        >>> sequence_loads(experts, 2, sequences=2).tolist()
        [[2, 0], [1, 1]]
    """
    check_choices(experts, num_experts)
    if mask is not None:
        check_mask(mask, experts.shape[:1])
    numbers, count = _numbered(sequences, len(experts), experts.device)
    columns = num_experts + 1
    # what is not counted falls in the last column
    places = experts if mask is None else experts.masked_fill(mask.unsqueeze(1), num_experts)
    flat = (numbers.unsqueeze(1) * columns + places).flatten()
    loads = torch.zeros(count * columns, dtype=torch.int64, device=experts.device)
    loads.index_add_(0, flat, torch.ones_like(flat))
    return loads.unflatten(0, (count, columns))[:, :num_experts]


def _numbered(sequences: int | Tensor, num_tokens: int, device: torch.device) -> tuple[Tensor, int]:
    """(T,) int64, the sequence of each token; and how many sequences there are."""
    if isinstance(sequences, int):
        if sequences < 1:
            raise ValueError(f"a sequence has at least one token, not {sequences}")
        return torch.arange(num_tokens, device=device) // sequences, -(-num_tokens // sequences)
    if not isinstance(sequences, Tensor):
        raise TypeError(
            f"sequences is their length, or a tensor of each token's sequence, not {sequences!r}"
        )
    if sequences.shape != (num_tokens,) or sequences.is_floating_point():
        raise ValueError(
            f"sequences must be whole numbers of shape ({num_tokens},), one for each token, not "
            f"{sequences.dtype} of shape {tuple(sequences.shape)}: pass their length, or "
            "torch.arange(S).repeat_interleave(lengths)"
        )
    if is_readable(sequences) and bool((sequences < 0).any()):
        raise ValueError(f"sequences are numbered from 0, not from {int(sequences.min())}")
    count = int(sequences.max()) + 1 if num_tokens else 0
    return sequences.to(device, torch.int64), count
