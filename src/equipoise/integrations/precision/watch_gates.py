"""What the routers of a Hugging Face model choose by, taken from its forwards over text.

A gate's logits are the product of hidden states and its weights. Where computing this product gives
what the gate returned, it is computed anew in every precision; where a gate does more (a norm, a
temperature), its own logits are rounded instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.attach.find.found_router import FoundRouter
from equipoise.attach.state.sidecar import shifts_beside
from equipoise.integrations.precision.choices import (
    ChoicesInPrecision,
    RouterInput,
    compare_choices,
)
from equipoise.results.router_precision import Source
from equipoise.routing.rounding import Precision

_SAME_LOGITS = 2.0**-6
"""of the largest logit: what a product in bf16 may be off by"""


class GateWatch:
    """One router, examined at every call of its gate."""

    def __init__(
        self, router: FoundRouter, shift: Tensor | None, precisions: Sequence[Precision]
    ) -> None:
        self.router = router
        self.precisions = precisions
        self.source: Source = "product"
        self.found: list[ChoicesInPrecision] = []
        self._shift = router.bias.read() if router.bias is not None else shift

    def see_gate(
        self, gate: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """The gate has returned."""
        hidden = next(each for each in [*args, *kwargs.values()] if isinstance(each, Tensor))
        place = self.router.spec.logits_at
        returned = output if place == -1 else output[place]
        logits = returned.detach().reshape(-1, self.router.spec.num_experts)
        product = _product_of(gate, hidden.detach().reshape(-1, hidden.shape[-1]), logits)
        if product is None:
            self.source = "logits"
        self.found.append(compare_choices(self._input(product or logits.to), self.precisions))

    def _input(self, logits_in: Callable[[torch.dtype], Tensor]) -> RouterInput:
        spec = self.router.spec
        assert spec.score is not None
        bias = None if self._shift is None else self._shift.double()
        return RouterInput(logits_in, spec.score, bias, spec.top_k, spec.groups)


def refuse_router(router: FoundRouter) -> str | None:
    """Why a router cannot be examined; None where it can."""
    spec = router.spec
    if spec.score is None or spec.logits_at is None:
        return "its gate does not return its logits"
    if spec.groups is not None and spec.group_worth != "top2":
        return "its groups are not chosen by their two best experts"
    if spec.num_experts == spec.top_k:
        return "every token takes every expert"
    return None


@contextmanager
def watched_gates(
    model: nn.Module, routers: Sequence[FoundRouter], precisions: Sequence[Precision]
) -> Iterator[dict[str, GateWatch]]:
    """Within the block, examine every call of these gates."""
    shifts = shifts_beside(model)
    watches = {
        router.name: GateWatch(router, shifts.get(router.name), precisions) for router in routers
    }
    handles = [
        watch.router.gate.register_forward_hook(watch.see_gate, with_kwargs=True)
        for watch in watches.values()
    ]
    try:
        yield watches
    finally:
        for handle in handles:
            handle.remove()


def _product_of(
    gate: nn.Module, hidden: Tensor, logits: Tensor
) -> Callable[[torch.dtype], Tensor] | None:
    """The gate's logits as a function of the dtype; None where its weights do not give them."""
    weight, offset = _linear_map(gate, (logits.shape[1], hidden.shape[1]))
    if weight is None:
        return None

    def product_in(dtype: torch.dtype) -> Tensor:
        added = None if offset is None else offset.to(dtype)
        return F.linear(hidden.to(dtype), weight.to(dtype), added)

    off = (product_in(torch.float32) - logits.float()).abs().max()
    return product_in if off <= _SAME_LOGITS * logits.float().abs().max() else None


def _linear_map(gate: nn.Module, shape: tuple[int, int]) -> tuple[Tensor | None, Tensor | None]:
    """The gate's (E, D) weights, and the (E,) that is added to the product (gpt_oss)."""
    named = {name: each.detach() for name, each in gate.named_parameters()}
    weights = [(name, each) for name, each in named.items() if tuple(each.shape) == shape]
    if len(weights) != 1:
        return None, None
    name, weight = weights[0]
    return weight, named.get(f"{name.removesuffix('weight')}bias")
