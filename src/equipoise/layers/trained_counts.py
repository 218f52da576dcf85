"""Count a forward when gradients come back from it, and not when it runs.

What a layer sees of a forward does not say whether its tokens are trained on: under reentrant
checkpointing gradients are off, as in an evaluation; under the other kind the layer runs twice with
gradients on; and a forward may still fail further up, or never reach the loss. The backward pass
says it. A gradient comes back to a choice's gates exactly once, in every one of these cases:

    what runs                            gradient at the gates of
    -----------------------------------  ---------------------------------------------
    a forward and its backward           the forward
    non-reentrant checkpointing          the forward; its recomputation only lends tensors
    reentrant checkpointing              the recomputation; the forward was without gradients
    evaluation, a forward that raised    none

In eager code a hook on the gates counts. Under torch.compile a hook would break the graph: there
the gates pass through an operator that changes nothing, and whose backward counts.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Protocol

import torch
from torch import Tensor

from equipoise.routing import Tally
from equipoise.routing.recomputation import in_backward


class TallyKeeper(Protocol):
    """What tallies are counted in: a LayerBalancer."""

    def add_tally(self, tally: Tally) -> None: ...


_KEEPERS: weakref.WeakValueDictionary[int, TallyKeeper] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def register_keeper(keeper: TallyKeeper) -> Tensor:
    """A number by which compiled code finds this keeper.

    A tensor and not an int: torch.compile would make new code for every int.
    """
    number = next(_NUMBERS)
    _KEEPERS[number] = keeper
    return torch.tensor(number, device="cpu")


def count_when_trained(gates: Tensor, tally: Tally, keeper: TallyKeeper, number: Tensor) -> Tensor:
    """The same gates; `keeper.add_tally(tally)` is called once when their gradient is known.

    Gates of a frozen router have none: they are counted now, unless this is a recomputation.
    """
    if torch.compiler.is_compiling():
        names = sorted(tally.parts)
        counts = [tally.step, tally.loads, *(tally.parts[name] for name in names)]
        joined = ",".join(names)
        if gates.requires_grad:
            return torch.ops.equipoise.count_later(gates, counts, number, joined)
        return torch.ops.equipoise.count_now(gates, counts, number, joined, True)
    if gates.requires_grad:
        gates.register_hook(_CountOnce(tally, keeper))
    elif not in_backward():
        keeper.add_tally(tally)
    return gates


class _CountOnce:
    """A gradient hook. Where one graph is gone through twice (retain_graph), it counts once."""

    def __init__(self, tally: Tally, keeper: TallyKeeper) -> None:
        self._tally: Tally | None = tally
        self._keeper = keeper

    def __call__(self, gradient: Tensor) -> None:
        tally, self._tally = self._tally, None
        if tally is not None:
            self._keeper.add_tally(tally)


# ---- the same in compiled code: operators that torch.compile does not look into


@torch.library.custom_op(
    "equipoise::count_now",
    mutates_args=(),
    schema="(Tensor values, Tensor[] counts, Tensor keeper, str names, bool is_forward) -> Tensor",
)
def _count_now(
    values: Tensor, counts: list[Tensor], keeper: Tensor, names: str, is_forward: bool
) -> Tensor:
    """A copy of the values; the counts are added to their keeper's.

    Copies of the counts: compiled code may use their memory again.
    """
    found = _KEEPERS.get(int(keeper))
    if found is not None and not (is_forward and in_backward()):
        step, loads, *parts = (count.clone() for count in counts)
        named = dict(zip(names.split(","), parts)) if names else {}
        found.add_tally(Tally(loads, loads.unsqueeze(0), step, named))
    return values.clone()


@torch.library.custom_op(
    "equipoise::count_later",
    mutates_args=(),
    schema="(Tensor gates, Tensor[] counts, Tensor keeper, str names) -> Tensor",
)
def _count_later(gates: Tensor, counts: list[Tensor], keeper: Tensor, names: str) -> Tensor:
    """A copy of the gates; the counts are added when its gradient is known."""
    return gates.clone()


@_count_now.register_fake
@_count_later.register_fake
def _copy_of(values: Tensor, *others: object) -> Tensor:
    return torch.empty_like(values)


def _keep_counts(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, counts, keeper, ctx.names = inputs
    ctx.save_for_backward(keeper, *counts)


def _count_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    keeper, *counts = ctx.saved_tensors
    same = torch.ops.equipoise.count_now(gradient, counts, keeper, ctx.names, False)
    return same, [None] * len(counts), None, None


_count_later.register_autograd(_count_backward, setup_context=_keep_counts)
