"""loop: block after block.

Plain autograd spends a third of its time outside the multiplications, most of that on the page
faults of fresh tensors with T*K rows; and if it runs a Python loop, each `weight[e]` brings a
gradient as large as the whole stack. So one autograd function walks over the blocks itself. Rows
are gathered, used and summed back a few thousand at a time, while they are in cache. Weight
gradients are multiplied right into their place. The gate is multiplied in before W_down, where rows
are F wide and not D. Only W_gate x and W_up x are kept for backward.

Shapes: T tokens, E experts, K choices, D hidden size, F expert size, S = T*K choices in all, N rows
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.layers.experts.sorting import sort_on_host, summing_dtype
from equipoise.layers.experts.uncompiled import leave_uncompiled

ROWS_AT_ONCE = 2048
"""Blocks of neighbouring experts are gathered, activated and summed back together up to this many
rows: fewer, and the overhead of each call shows in small layers; more, and the rows of large ones
leave the cache.
"""


# the sizes of blocks are read on the host, which breaks a graph anyway
@leave_uncompiled
def loop_experts(
    hidden: Tensor,
    experts: Tensor,
    gates: Tensor,
    gate_up: Tensor,
    down: Tensor,
    onto: Tensor | None = None,
) -> Tensor:
    """The output (T, D), block after block."""
    order, counts = sort_on_host(experts, len(down))
    sorted_gates = gates.flatten().index_select(0, order)
    keep = torch.is_grad_enabled() and any(
        each.requires_grad for each in (hidden, gates, gate_up, down)
    )
    return _Loop.apply(
        hidden, sorted_gates, gate_up, down, onto, order // experts.shape[1], counts, keep
    )


class _Loop(torch.autograd.Function):
    """`gates` and `tokens` (S,) are sorted by expert here."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        gates: Tensor,
        gate_up: Tensor,
        down: Tensor,
        onto: Tensor | None,
        tokens: Tensor,
        counts: list[int],
        keep: bool,
    ) -> Tensor:
        out = (
            torch.zeros_like(hidden, dtype=summing_dtype(hidden))
            if onto is None
            else onto.to(summing_dtype(hidden))
        )
        if out is onto:
            ctx.mark_dirty(onto)
        kept = []
        for e, n, sizes in expert_runs(counts):
            x = hidden.index_select(0, tokens[n])
            inner = x.new_empty(len(x), gate_up.shape[1])
            _multiply(x.split(sizes), gate_up[e].mT, inner.split(sizes))
            gate, up = inner.chunk(2, dim=1)
            act = F.silu(gate).mul_(up).mul_(gates[n].unsqueeze(1))
            # reuse x's memory
            y = x
            _multiply(act.split(sizes), down[e].mT, y.split(sizes))
            out.index_add_(0, tokens[n], y.to(out.dtype))
            if keep:
                kept.append(inner)
        ctx.counts = counts
        ctx.save_for_backward(hidden, gates, gate_up, down, tokens, *kept)
        return out.to(hidden.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad.device.type, enabled=False):
            grads = _loop_backward(grad, ctx.counts, ctx.needs_input_grad[:4], *ctx.saved_tensors)
        return *grads, grad if ctx.needs_input_grad[4] else None, None, None, None


def _loop_backward(
    grad: Tensor,
    counts: list[int],
    wanted: tuple[bool, ...],
    hidden: Tensor,
    gates: Tensor,
    gate_up: Tensor,
    down: Tensor,
    tokens: Tensor,
    *kept: Tensor,
) -> tuple[Tensor | None, ...]:
    """Gradients of hidden, gates, gate_up and down. Of the large ones only those wanted are
    multiplied out.
    """
    d_hidden = torch.zeros_like(hidden, dtype=summing_dtype(hidden)) if wanted[0] else None
    d_gates = torch.zeros_like(gates)
    d_gate_up = torch.empty_like(gate_up) if wanted[2] else None
    d_down = torch.empty_like(down) if wanted[3] else None

    for inner, (e, n, sizes) in zip(kept, expert_runs(counts), strict=True):
        d_y = grad.index_select(0, tokens[n])
        d_act = inner.new_empty(len(d_y), down.shape[2])
        _multiply(d_y.split(sizes), down[e], d_act.split(sizes))
        act, d_inner = _swiglu_backward(inner, d_act, gates[n], d_gates[n])
        if d_down is not None:
            _multiply(d_y.T.split(sizes, 1), act.split(sizes), d_down[e])
        if d_gate_up is not None:
            _multiply(
                d_inner.T.split(sizes, 1),
                hidden.index_select(0, tokens[n]).split(sizes),
                d_gate_up[e],
            )
        if d_hidden is not None:
            # reuse d_y's memory
            d_x = d_y
            _multiply(d_inner.split(sizes), gate_up[e], d_x.split(sizes))
            d_hidden.index_add_(0, tokens[n], d_x.to(d_hidden.dtype))
    return None if d_hidden is None else d_hidden.to(hidden.dtype), d_gates, d_gate_up, d_down


def _swiglu_backward(
    inner: Tensor, d_act: Tensor, gates: Tensor, d_gates: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated activation (N, F) once more, and the gradient of inner (N, 2F). Writes d_gates (N)
    and uses up d_act.

    d_act (N, F) has the gate not yet in it, so that its product with the bare activation is the
    gate's own gradient: a sum over F numbers, where the outputs would need D. Written out, since
    torch's own silu_backward takes twice as long.
    """
    (gate, up), d_inner = inner.chunk(2, dim=1), torch.empty_like(inner)
    d_gate, d_up = d_inner.chunk(2, dim=1)
    sigmoid = torch.sigmoid(gate)
    silu = gate * sigmoid
    act = silu * up
    torch.sum(d_act * act, 1, dtype=d_gates.dtype, out=d_gates)
    d_act.mul_(gates.unsqueeze(1))
    torch.mul(d_act, silu, out=d_up)
    # the slope of silu; silu + sigmoid * (1 - silu) would cancel in bf16
    slope = torch.addcmul(sigmoid, silu, 1 - sigmoid)
    torch.mul(d_act.mul_(up), slope, out=d_gate)
    return act.mul_(gates.unsqueeze(1)), d_inner


def _multiply(lefts: Iterable[Tensor], rights: Iterable[Tensor], outs: Iterable[Tensor]) -> None:
    """One product per expert. An idle expert's weight gradient is an empty sum, which torch.mm
    makes 0.
    """
    for left, right, out in zip(lefts, rights, outs, strict=True):
        if out.numel():
            torch.mm(left, right, out=out)


def expert_runs(counts: list[int]) -> Iterator[tuple[slice, slice, list[int]]]:
    """Neighbouring experts with at most ROWS_AT_ONCE rows together, or one expert with more.

    Yields the experts, their rows, and the number of rows of each.
    """
    first, start, size = 0, 0, 0
    for e, count in enumerate(counts):
        if size and size + count > ROWS_AT_ONCE:
            yield slice(first, e), slice(start, start + size), counts[first:e]
            first, start, size = e, start + size, 0
        size += count
    yield slice(first, len(counts)), slice(start, start + size), counts[first:]
