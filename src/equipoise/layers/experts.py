"""The experts of a Mixture-of-Experts: E small SwiGLU networks, of which each token passes through
K.

    out_t = sum_k gates_tk * W_down[e] (silu(W_gate[e] x_t) * W_up[e] x_t)          with e = experts_tk

Nothing is dropped: whatever the router chose is computed, however full an expert gets. An expert
index equal to E means "no expert": that choice is skipped and its gate gets no gradient.

The work is matrix multiplication, and all else is overhead to be kept small. Choices are sorted by
expert once, so that each expert multiplies one contiguous block. Three implementations differ in
how the blocks are run:

    loop      block after block. Needs the blocks' sizes on the host, which makes a GPU wait.
    grouped   torch.nn.functional.grouped_mm over all blocks. The sizes stay on the device. Not in float64.
    padded    one batched multiplication, every block filled up with zeros to the fullest, which costs what imbalance costs.

Each has the output and the gradients of `reference_experts`, which asks every expert about every
token.

What "auto" takes. On the CPU, loop: forward and backward it was at least as fast as the others at
all sizes measured, from 16 to 8,192 tokens and 8 to 128 experts, and 1.3 times as fast as grouped
at the largest. Elsewhere, grouped where its rule of alignment (rows of whole 16 bytes) allows it,
and loop otherwise: that is how others do it on GPUs, and has not been measured, since no GPU was at
hand.

How loop is fast. Plain autograd spends a third of its time outside the multiplications, most of
that on the page faults of fresh tensors with T*K rows; and if it runs a Python loop, each
`weight[e]` brings a gradient as large as the whole stack. So one autograd function walks over the
blocks itself. Rows are gathered, used and summed back a few thousand at a time, while they are in
cache. Weight gradients are multiplied right into their place. The gate is multiplied in before
W_down, where rows are F wide and not D. Only W_gate x and W_up x are kept for backward.

Shapes: T tokens, E experts, K choices, D hidden size, F expert size, S = T*K choices in all, N rows
    at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Run = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]


class Experts(nn.Module):
    """E SwiGLU experts with stacked weights.

    `gate_up` (E, 2F, D) holds W_gate above W_up, so that one multiplication does both, and `down`
    is (E, D, F): the layout of transformers' gate_up_proj and down_proj. The transposed layouts
    were measured to be within 2% of it.

    Args:
        num_experts: E.
        hidden_size: D.
        expert_size: F.
        implementation: "loop", "grouped", "padded", or "auto" for the fastest known.
        init_std: standard deviation of the normal distribution that the weights start from.

    Example:
        >>> layer = Experts(4, 8, 16)
        >>> experts = torch.tensor([[0, 1], [2, 4], [4, 4]])
        >>> layer(torch.randn(3, 8), experts, torch.ones(3, 2))[2].count_nonzero().item()
        0
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        expert_size: int,
        *,
        implementation: str = "auto",
        init_std: float = 0.006,
    ) -> None:
        super().__init__()
        if implementation != "auto" and implementation not in IMPLEMENTATIONS:
            raise ValueError(
                f"implementation must be auto, {', '.join(IMPLEMENTATIONS)}, not {implementation!r}"
            )
        self.implementation = implementation
        self.init_std = init_std
        self.gate_up = nn.Parameter(torch.empty(num_experts, 2 * expert_size, hidden_size))
        self.down = nn.Parameter(torch.empty(num_experts, hidden_size, expert_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gate_up, std=self.init_std)
        nn.init.normal_(self.down, std=self.init_std)

    def forward(
        self, hidden: Tensor, experts: Tensor, gates: Tensor, onto: Tensor | None = None
    ) -> Tensor:
        """(T, D) from hidden (T, D), experts (T, K) int64 and gates (T, K), as `route` returns
        them.

        Under autocast everything is cast as nn.Linear casts it. Gates may be more precise than
        hidden. The result is added to `onto` (T, D) if given, whose memory may be used for it:
        saves a pass where shared experts have something to add to.
        """
        _check(self, hidden, experts, gates)
        device = hidden.device.type
        hidden, gate_up, down = _cast_by_autocast(device, hidden, self.gate_up, self.down)
        run = IMPLEMENTATIONS[
            _fastest(hidden, down) if self.implementation == "auto" else self.implementation
        ]
        with torch.autocast(device, enabled=False):
            return run(hidden, experts, gates, gate_up, down, onto)

    def extra_repr(self) -> str:
        E, D, width = self.down.shape
        return f"{E}, {D}, {width}, implementation={self.implementation!r}"


def reference_experts(
    hidden: Tensor, experts: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """The slow twin: every expert computes every token, and the gates of those not chosen are 0."""
    T, E = len(hidden), len(down)
    gates_TE = gates.new_zeros(T, E + 1).scatter_add(1, experts, gates)[:, :E]
    gate, up = torch.einsum("td,efd->tef", hidden, gate_up).chunk(2, dim=-1)
    return torch.einsum("te,tef,edf->td", gates_TE.to(hidden.dtype), F.silu(gate) * up, down)


# -- loop: block after block
#  -------------------------------------------------------------------------------------------

ROWS = 2048
"""Blocks of neighbouring experts are gathered, activated and summed back together up to this many
rows: fewer, and the overhead of each call shows in small layers; more, and the rows of large ones
leave the cache.
"""


@torch.compiler.disable  # the sizes of blocks are read on the host, which breaks a graph anyway
def _loop(
    hidden: Tensor,
    experts: Tensor,
    gates: Tensor,
    gate_up: Tensor,
    down: Tensor,
    onto: Tensor | None = None,
) -> Tensor:
    order, counts = _sort_on_host(experts, len(down))
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
            torch.zeros_like(hidden, dtype=_sum_dtype(hidden))
            if onto is None
            else onto.to(_sum_dtype(hidden))
        )
        if out is onto:
            ctx.mark_dirty(onto)
        kept = []
        for e, n, sizes in _runs(counts):
            x = hidden.index_select(0, tokens[n])
            inner = x.new_empty(len(x), gate_up.shape[1])
            _multiply(x.split(sizes), gate_up[e].mT, inner.split(sizes))
            gate, up = inner.chunk(2, dim=1)
            act = F.silu(gate).mul_(up).mul_(gates[n].unsqueeze(1))
            y = x  # which has served
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
    d_hidden = torch.zeros_like(hidden, dtype=_sum_dtype(hidden)) if wanted[0] else None
    d_gates = torch.zeros_like(gates)
    d_gate_up = torch.empty_like(gate_up) if wanted[2] else None
    d_down = torch.empty_like(down) if wanted[3] else None

    for inner, (e, n, sizes) in zip(kept, _runs(counts), strict=True):
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
            d_x = d_y  # which has served
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
    slope = torch.addcmul(
        sigmoid, silu, 1 - sigmoid
    )  # of silu; silu + sigmoid * (1 - silu) would cancel in bf16
    torch.mul(d_act.mul_(up), slope, out=d_gate)
    return act.mul_(gates.unsqueeze(1)), d_inner


def _multiply(lefts: Iterable[Tensor], rights: Iterable[Tensor], outs: Iterable[Tensor]) -> None:
    """One product per expert. An idle expert's weight gradient is an empty sum, which torch.mm
    makes 0.
    """
    for left, right, out in zip(lefts, rights, outs, strict=True):
        if out.numel():
            torch.mm(left, right, out=out)


def _runs(counts: list[int]) -> Iterator[tuple[slice, slice, list[int]]]:
    """Neighbouring experts with at most ROWS rows together, or one with more: the experts, their
    rows, rows of each.
    """
    first, start, size = 0, 0, 0
    for e, count in enumerate(counts):
        if size and size + count > ROWS:
            yield slice(first, e), slice(start, start + size), counts[first:e]
            first, start, size = e, start + size, 0
        size += count
    yield slice(first, len(counts)), slice(start, start + size), counts[first:]


# -- grouped: all blocks in one call
#  -----------------------------------------------------------------------------------


def _grouped(
    hidden: Tensor,
    experts: Tensor,
    gates: Tensor,
    gate_up: Tensor,
    down: Tensor,
    onto: Tensor | None = None,
) -> Tensor:
    # inductor knows grouped_mm in bf16 only
    unknown = torch.compiler.is_compiling() and hidden.dtype != torch.bfloat16
    out = (_grouped_uncompiled if unknown else _grouped_anyhow)(
        hidden, experts, gates, gate_up, down
    )
    return out if onto is None else onto + out


def _grouped_anyhow(
    hidden: Tensor, experts: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """Rows behind the last block are left as they were found in memory by grouped_mm, so _collect
    masks them.
    """
    nobody = experts == len(down)
    chosen, order = experts.flatten().sort(stable=True)
    ends = torch.searchsorted(
        chosen, torch.arange(len(down), device=chosen.device), right=True, out_int32=True
    )
    way = _Way(order, order.argsort(), nobody)
    gates = gates.masked_fill(nobody, 0).flatten().index_select(0, order)

    rows = _Spread.apply(hidden, *way)
    gate, up = F.grouped_mm(rows, gate_up.mT, offs=ends).chunk(2, dim=-1)
    act = (F.silu(gate) * up * gates.unsqueeze(1)).to(hidden.dtype)
    return _Collect.apply(F.grouped_mm(act, down.mT, offs=ends), *way)


_grouped_uncompiled = torch.compiler.disable(_grouped_anyhow)


class _Way(NamedTuple):
    """From tokens to sorted rows and back."""

    order: Tensor
    """(S,) the choice t*K + k that each sorted row belongs to"""
    place: Tensor
    """(S,) the sorted row of each choice"""
    nobody: Tensor
    """(T, K) choices without an expert"""


class _Spread(torch.autograd.Function):
    """hidden (T, D) to sorted rows (S, D). Its transpose is _Collect, without the atomics of
    index_add's.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, order: Tensor, place: Tensor, nobody: Tensor) -> Tensor:
        ctx.save_for_backward(order, place, nobody)
        return hidden.index_select(0, order // nobody.shape[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Collect.apply(grad, *ctx.saved_tensors), None, None, None


class _Collect(torch.autograd.Function):
    """Sorted rows (S, D) to the sum over each token's K (T, D). Its transpose is _Spread."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, place: Tensor, nobody: Tensor) -> Tensor:
        ctx.save_for_backward(order, place, nobody)
        by_token = rows.index_select(0, place).unflatten(0, nobody.shape)
        return by_token.masked_fill_(nobody.unsqueeze(2), 0).sum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Spread.apply(grad, *ctx.saved_tensors), None, None, None


# -- padded: every block filled up to the fullest
#  ----------------------------------------------------------------------


@torch.compiler.disable
def _padded(
    hidden: Tensor,
    experts: Tensor,
    gates: Tensor,
    gate_up: Tensor,
    down: Tensor,
    onto: Tensor | None = None,
) -> Tensor:
    (E, D, _), sum_dtype = down.shape, _sum_dtype(hidden)
    order, counts = _sort_on_host(experts, E)
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


# -- what they share
#  ---------------------------------------------------------------------------------------------------

IMPLEMENTATIONS: dict[str, Run] = {"loop": _loop, "grouped": _grouped, "padded": _padded}


def _fastest(hidden: Tensor, down: Tensor) -> str:
    """What "auto" means for these tensors: see the top of the file."""
    known = hidden.dtype in (torch.bfloat16, torch.float16, torch.float32) and hasattr(
        F, "grouped_mm"
    )
    aligned = all(size * hidden.element_size() % 16 == 0 for size in down.shape[1:])
    return "grouped" if hidden.device.type != "cpu" and known and aligned else "loop"


def _sort_on_host(experts: Tensor, num_experts: int) -> tuple[Tensor, list[int]]:
    """The choices t*K + k in the order of their experts (S,), and how many each expert has. Those
    without come last.
    """
    chosen = experts.flatten()
    counts = torch.bincount(chosen, minlength=num_experts + 1).tolist()
    if len(counts) > num_experts + 1:
        raise ValueError(
            f"experts holds the index {len(counts) - 1}, but there are {num_experts} experts: "
            f"0 to {num_experts - 1}, and {num_experts} for none"
        )
    return chosen.argsort(stable=True), counts[:num_experts]


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    """Where K rows are added one after the other, bf16 would round K times."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _cast_by_autocast(device: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """What autocast does to the arguments of a matrix multiplication; our own function it would not
    know.
    """
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)


def _check(layer: Experts, hidden: Tensor, experts: Tensor, gates: Tensor) -> None:
    D = layer.down.shape[1]
    if hidden.dim() != 2 or hidden.shape[1] != D:
        raise ValueError(
            f"hidden must be (tokens, {D}), not {tuple(hidden.shape)}: flatten leading "
            "dimensions first"
        )
    if experts.shape != gates.shape or experts.dim() != 2 or len(experts) != len(hidden):
        raise ValueError(
            f"experts {tuple(experts.shape)} and gates {tuple(gates.shape)} must both be "
            f"({len(hidden)} tokens, choices)"
        )
    if hidden.dtype != layer.down.dtype and not torch.is_autocast_enabled(hidden.device.type):
        raise TypeError(
            f"hidden is {hidden.dtype}, the weights are {layer.down.dtype}: convert one, or use "
            "autocast"
        )
