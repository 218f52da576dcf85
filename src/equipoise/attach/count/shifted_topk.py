"""ShiftedTopK: give a shift to a router that has no place for one.

The gate's own code runs unchanged, but its last top-K is ours: it chooses by `ranked + shift` and
returns the *unshifted* values of what it chose. Whatever the gate then does with them (softmax,
renormalise, scale) it does to unshifted scores, so the shift cannot enter a gate weight, whatever
the family's formula is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from equipoise.attach.find.routing_spec import RoutingSpec
from equipoise.attach.find.watched_run import TOPK

ChoiceCallback = Callable[[Tensor, Tensor, Tensor], None]
"""(indices, ranked, shifted)"""


class ShiftedTopK(TorchFunctionMode):
    """Within this mode, the top-K over a router's experts is shifted.

    Args:
        spec: how the router chooses.
        shift: (E,) float32.
        chosen: called with (indices, ranked, shifted) of every choice.
    """

    def __init__(self, spec: RoutingSpec, shift: Tensor, chosen: ChoiceCallback) -> None:
        super().__init__()
        self.spec = spec
        self.shift = shift
        self.chosen = chosen

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in TOPK:
            return func(*args, **kwargs)
        named = {**dict(zip(("input", "k"), args)), **kwargs}
        values: Tensor = named["input"]
        if values.shape[-1] == self.spec.num_experts and named["k"] == self.spec.top_k:
            return self._choose_shifted(values)
        groups = self.spec.groups
        if groups is not None and values.shape[-2:] == (
            groups.number,
            self.spec.num_experts // groups.number,
        ):
            # groups are chosen by shifted scores too, as in the families that have a bias
            return func(
                values + self.shift.to(values.device).view(groups.number, -1),
                *args[1:],
                **_drop_input(kwargs),
            )
        return func(*args, **kwargs)

    def _choose_shifted(self, values: Tensor) -> Any:
        """The top-K by shifted values, with the unshifted values of what it chose."""
        ranked = values.detach()
        shifted = ranked.float() + self.shift.to(values.device)
        if self.spec.fill == 0.0:
            # a 0 marks a group that may not be chosen, whatever its shift
            shifted = shifted.masked_fill(ranked == 0, -torch.inf)
        indices = shifted.topk(self.spec.top_k, dim=-1).indices
        self.chosen(indices, values, shifted)
        return torch.return_types.topk((values.gather(-1, indices), indices))


def _drop_input(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "input"}
