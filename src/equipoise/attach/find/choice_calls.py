"""The calls of torch by which a router may choose: topk, or argmax and max for a single expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

TOPK = (torch.topk, torch.Tensor.topk)
_ARGUMENTS = {
    **dict.fromkeys(TOPK, ("topk", ("input", "k", "dim", "largest", "sorted"))),
    torch.argmax: ("argmax", ("input", "dim", "keepdim")),
    torch.Tensor.argmax: ("argmax", ("input", "dim", "keepdim")),
    torch.max: ("max", ("input", "dim", "keepdim")),
    torch.Tensor.max: ("max", ("input", "dim", "keepdim")),
}
"""of each function: which form of choice it is, and its arguments in order"""

FORMS = ("topk", "argmax", "max")
"""the first that a router uses over its experts makes its choice: max is also a step of softmax"""


class ChoiceCall(NamedTuple):
    """One call that takes the largest of the last dimension."""

    form: str
    """one of FORMS"""
    values: Tensor
    """(..., N) what it is taken of"""
    top_k: int
    keepdim: bool

    def answer(self, values: Tensor, indices: Tensor) -> Any:
        """What the call returns, where (..., K) values and indices are chosen."""
        if self.form == "topk":
            return torch.return_types.topk((values, indices))
        if not self.keepdim:
            values, indices = values.squeeze(-1), indices.squeeze(-1)
        return torch.return_types.max((values, indices)) if self.form == "max" else indices

    def indices_of(self, answer: Any) -> Tensor:
        """(..., K) indices, of what the call returned."""
        indices: Tensor = answer if self.form == "argmax" else answer[1]
        return indices if self.form == "topk" or self.keepdim else indices.unsqueeze(-1)


def read_choice(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ChoiceCall | None:
    """A call of torch as a choice; None where it is none over the last dimension."""
    if func not in _ARGUMENTS:
        return None
    form, names = _ARGUMENTS[func]
    named = {**dict(zip(names, args)), **kwargs}
    values, dim = named["input"], named.get("dim", -1 if form == "topk" else None)
    if not isinstance(dim, int) or not values.dim() or dim % values.dim() != values.dim() - 1:
        return None
    if not named.get("largest", True):
        return None
    top_k = int(named["k"]) if form == "topk" else 1
    return ChoiceCall(form, values, top_k, bool(named.get("keepdim", False)))
