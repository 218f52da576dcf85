"""grouped: all blocks in one call of torch.nn.functional.grouped_mm. Sizes stay on the device, so
that a GPU need not wait. Not in float64.

Shapes: T tokens, E experts, K choices, D hidden size, S = T*K choices in all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.layers.experts.uncompiled import leave_uncompiled


def grouped_experts(
    hidden: Tensor,
    experts: Tensor,
    gates: Tensor,
    gate_up: Tensor,
    down: Tensor,
    onto: Tensor | None = None,
) -> Tensor:
    """The output (T, D) by grouped_mm, compiled only where the compiler knows it."""
    # inductor knows grouped_mm in bf16 only
    unknown = torch.compiler.is_compiling() and hidden.dtype != torch.bfloat16
    out = (_uncompiled_grouped_mm if unknown else _grouped_mm)(
        hidden, experts, gates, gate_up, down
    )
    return out if onto is None else onto + out


def _grouped_mm(
    hidden: Tensor, experts: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """grouped_mm leaves rows behind the last block as it found them in memory, so _Collect masks
    them.
    """
    no_expert = experts == len(down)
    chosen, order = experts.flatten().sort(stable=True)
    ends = torch.searchsorted(
        chosen, torch.arange(len(down), device=chosen.device), right=True, out_int32=True
    )
    rows_of = _RowOrder(order, order.argsort(), no_expert)
    gates = gates.masked_fill(no_expert, 0).flatten().index_select(0, order)

    rows = _Spread.apply(hidden, *rows_of)
    gate, up = F.grouped_mm(rows, gate_up.mT, offs=ends).chunk(2, dim=-1)
    act = (F.silu(gate) * up * gates.unsqueeze(1)).to(hidden.dtype)
    return _Collect.apply(F.grouped_mm(act, down.mT, offs=ends), *rows_of)


_uncompiled_grouped_mm = leave_uncompiled(_grouped_mm)


class _RowOrder(NamedTuple):
    """From tokens to sorted rows and back."""

    order: Tensor
    """(S,) the choice t*K + k that each sorted row belongs to"""
    place: Tensor
    """(S,) the sorted row of each choice"""
    no_expert: Tensor
    """(T, K) choices without an expert"""


class _Spread(torch.autograd.Function):
    """hidden (T, D) to sorted rows (S, D). Its transpose is _Collect, without the atomics of
    index_add's.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, order: Tensor, place: Tensor, no_expert: Tensor
    ) -> Tensor:
        ctx.save_for_backward(order, place, no_expert)
        return hidden.index_select(0, order // no_expert.shape[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Collect.apply(grad, *ctx.saved_tensors), None, None, None


class _Collect(torch.autograd.Function):
    """Sorted rows (S, D) to the sum over each token's K (T, D). Its transpose is _Spread."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, place: Tensor, no_expert: Tensor) -> Tensor:
        ctx.save_for_backward(order, place, no_expert)
        by_token = rows.index_select(0, place).unflatten(0, no_expert.shape)
        return by_token.masked_fill_(no_expert.unsqueeze(2), 0).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Spread.apply(grad, *ctx.saved_tensors), None, None, None
