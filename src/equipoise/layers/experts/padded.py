"""padded: one batched multiplication, every block filled up with zeros to the fullest, which costs
what imbalance costs.

Shapes: T tokens, E experts, K choices, D hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.layers.experts.sorting import sort_on_host, summing_dtype
from equipoise.layers.experts.uncompiled import leave_uncompiled


@leave_uncompiled
def padded_experts(
    hidden: Tensor,
    experts: Tensor,
    gates: Tensor,
    gate_up: Tensor,
    down: Tensor,
    onto: Tensor | None = None,
) -> Tensor:
    """The output (T, D) by one batched multiplication of blocks of equal size."""
    (E, D, _), sum_dtype = down.shape, summing_dtype(hidden)
    order, counts = sort_on_host(experts, E)
    order, fullest = order[: sum(counts)], max(counts)
    tokens, gates = order // experts.shape[1], gates.flatten().index_select(0, order)
    slots = torch.cat(
        [torch.arange(count, device=order.device) + e * fullest for e, count in enumerate(counts)]
    )

    x = hidden.new_zeros(E * fullest, D).index_copy(0, slots, hidden.index_select(0, tokens))
    gate, up = torch.bmm(x.view(E, fullest, D), gate_up.mT).chunk(2, dim=-1)
    y = torch.bmm(F.silu(gate) * up, down.mT).view(-1, D).index_select(0, slots) * gates.unsqueeze(
        1
    )
    start = torch.zeros_like(hidden, dtype=sum_dtype) if onto is None else onto.to(sum_dtype)
    return start.index_add(0, tokens, y.to(sum_dtype)).to(hidden.dtype)
