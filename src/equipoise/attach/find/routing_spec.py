"""RoutingSpec: how a router chooses, as the probe found it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from equipoise.routing import Groups, score_function

PROBED_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": score_function("sigmoid"),
    "softmax": score_function("softmax"),
    "sqrt_softplus": score_function("sqrt_softplus"),
    "identity": lambda logits: logits.float(),
}
"""the score functions that a probe recognises"""


@dataclass(frozen=True)
class RoutingSpec:
    """How a router chooses."""

    num_experts: int
    """E, of the top-K: may exceed the experts that exist (longcat_flash's zero-experts)"""
    top_k: int
    groups: Groups | None
    """None where every group is kept"""
    group_worth: str | None
    """what a group is chosen by: "top2" of its scores, as `route` does, or "other" """
    fill: float | None
    """what scores outside the chosen groups are set to: -inf, or 0 in older transformers"""
    score: str | None
    """the score function from the logits to what is ranked; None where it was not recognised"""
    logits_at: int | None
    """which of the gate's outputs holds the logits; -1 where it returns them alone; None where it
    does not return them
    """
    bias: str | None
    """the block's tensor that is added before the choice"""
    in_gate: bool
    """whether the choice is made by the gate's forward, or by the block's `route_tokens_to_experts`
    """
    passed: bool
    """whether the block passes the bias to the gate as an argument"""
    returns_choice: bool = False
    """whether the gate returns the indices of the experts it chose"""
    form: str = "topk"
    """the call that chooses: "topk", or "argmax" or "max" for one expert"""


def holds_choice(value: object, top_k: int) -> TypeGuard[Tensor]:
    """Whether a value is the indices of chosen experts, (..., K), and no mask."""
    return (
        isinstance(value, Tensor)
        and value.dtype in (torch.int64, torch.int32)
        and value.dim() > 0
        and value.shape[-1] == top_k
    )


def find_choice(values: Sequence[object], top_k: int) -> Tensor | None:
    """The chosen experts among what the experts were called with: (..., K) if there are such, else
    the first integers. A mask is none.
    """
    exact = [value for value in values if holds_choice(value, top_k)]
    integers = [
        value
        for value in values
        if isinstance(value, Tensor)
        and not value.is_floating_point()
        and value.dtype != torch.bool
        and value.numel() % top_k == 0
    ]
    return next(iter([*exact, *integers]), None)


def score_by_name(name: str) -> Callable[[Tensor], Tensor]:
    """A score function that a probe recognised; "identity" ranks what the gate returns as it is."""
    return PROBED_SCORES[name]
