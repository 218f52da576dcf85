"""ExchangedTopK: let a router take other experts than its top-K chose.

The gate's own code runs, and its last top-K returns the indices that `settle` gives in place of its
own. The values it returns are gathered from the scores of *all* experts: where a router masks the
groups it did not choose, an expert of such a group would otherwise have a gate of 0, or -inf, and
no gradient. The top-Ks that choose groups are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from equipoise.attach.find.choice_calls import ChoiceCall, read_choice
from equipoise.attach.find.routing_spec import RoutingSpec

Settle = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(own indices, ranked values, the same of all groups) -> the indices that are taken; the very same
tensor where nothing is exchanged
"""


class ExchangedTopK(TorchFunctionMode):
    """Within this mode, the experts that a router's last top-K returns are those of `settle`.

    Inside of a ShiftedTopK, so that "own" means: with the shift.
    """

    def __init__(self, spec: RoutingSpec, settle: Settle) -> None:
        super().__init__()
        self.spec = spec
        self.settle = settle
        self._before_groups: Tensor | None = None
        """the scores of all experts, before those of other groups were masked"""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        choice = read_choice(func, args, kwargs or {})
        answer = func(*args, **(kwargs or {}))
        if choice is None:
            return answer
        values, spec = choice.values, self.spec
        if _takes_experts(choice, spec):
            with torch._C.DisableTorchFunction():
                return self._exchange(choice, answer)
        if spec.groups is not None and values.shape[-2:] == (
            spec.groups.number,
            spec.num_experts // spec.groups.number,
        ):
            self._before_groups = values.flatten(-2)
        return answer

    def _exchange(self, choice: ChoiceCall, answer: Any) -> Any:
        own = choice.indices_of(answer)
        scores = choice.values
        was_seen = self._before_groups is not None
        if self._before_groups is not None:
            scores, self._before_groups = self._before_groups.reshape(scores.shape), None
        taken = self.settle(own, choice.values, scores)
        if taken is own:
            return answer
        if not was_seen and self.spec.groups is not None and self.spec.bias is None:
            raise RuntimeError(
                "this router masks scores of other groups, and its scores before that were not "
                "seen: experts cannot be supplied to it"
            )
        return choice.answer(scores.gather(-1, taken), taken)


def _takes_experts(choice: ChoiceCall, spec: RoutingSpec) -> bool:
    alike = choice.form == spec.form and choice.top_k == spec.top_k
    return alike and choice.values.shape[-1] == spec.num_experts
