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

from equipoise.attach.find.choice_calls import read_choice
from equipoise.attach.find.routing_spec import RoutingSpec
from equipoise.routing.kernels.operators import best_experts

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
        self._before_groups: Tensor | None = None
        """the scores of all experts, before those of other groups were masked"""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        choice = read_choice(func, args, kwargs or {})
        spec = self.spec
        if choice is None or choice.form != spec.form:
            return func(*args, **(kwargs or {}))
        values = choice.values
        if values.shape[-1] == spec.num_experts and choice.top_k == spec.top_k:
            return choice.answer(*self._choose_shifted(values))
        groups = spec.groups
        if groups is not None and values.shape[-2:] == (
            groups.number,
            spec.num_experts // groups.number,
        ):
            if not torch.compiler.is_compiling():
                self._before_groups = values.flatten(-2)
            # groups are chosen by shifted scores too, as in the families that have a bias
            shifted = values + self.shift.to(values.device).view(groups.number, -1)
            return func(shifted, *args[1:], **_drop_input(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _choose_shifted(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The unshifted values and the indices of the top-K by shifted values."""
        # a router inside another must not be shifted by both
        with torch._C.DisableTorchFunction():
            ranked = values.detach()
            shifted = ranked.float() + self.shift.to(values.device)
            if self.spec.fill == 0.0:
                # a 0 marks a group that may not be chosen, whatever its shift
                shifted = shifted.masked_fill(ranked == 0, -torch.inf)
            indices = best_experts(shifted, self.spec.top_k)
            chosen = values.gather(-1, indices)
            if self._before_groups is not None:
                scores, self._before_groups = self._before_groups, None
                values, shifted = scores, scores.detach().float() + self.shift.to(values.device)
        self.chosen(indices, values, shifted)
        return chosen, indices


def _drop_input(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "input"}
