"""The choice of one router, computed in several precisions and compared with float64.

The same tokens, the same weights, and one thing changed at a time. With z the logits, s = score(z)
and b the bias, experts are the K highest s + b:

    logits      z = h W^T in the precision; the rest in float64
    bias        b in the precision; the rest in float64
    both        z and b in the precision; score and sum in float64
    whole       z, b, the score function and the sum, all in the precision

A token is changed where its *set* of experts is another one. Ties go to the lowest index in every
precision (`route`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from equipoise.routing import Groups, Routing, route
from equipoise.routing.rounding import Precision

SCORES_IN_ANY_DTYPE: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: F.softmax(logits, dim=-1),
    "sigmoid": torch.sigmoid,
    "sqrt_softplus": lambda logits: F.softplus(logits).sqrt(),
    "identity": lambda logits: logits,
}
"""as routing/score_functions.py, which always computes in float32"""

_Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class RouterInput:
    """What one router chooses by, of T tokens."""

    logits_in: Callable[[torch.dtype], Tensor]
    """(T, E) logits, computed in a dtype; or scores, where `score` is "identity" """
    score: str
    bias: Tensor | None
    """(E,) in float64; None where there is none"""
    top_k: int
    groups: Groups | None = None


@dataclass(frozen=True)
class ChoicesInPrecision:
    """T tokens of one router."""

    margins: NDArray[np.float64]
    """(T,) of the K-th expert above the next, in float64; inf where there is no next"""
    levels: NDArray[np.float64]
    """(T,) the larger magnitude of the two numbers whose difference is the margin"""
    changed: dict[tuple[str, str], _Flags]
    """(T,) by precision and part: whether the experts are others"""
    not_finite: dict[str, _Flags]
    """(T,) by precision: whether a logit is no finite number in it"""


@torch.no_grad()
def compare_choices(router: RouterInput, precisions: Sequence[Precision]) -> ChoicesInPrecision:
    """The choice in float64, and which tokens choose otherwise in each precision."""
    exact = router.logits_in(torch.float64)
    scores = SCORES_IN_ANY_DTYPE[router.score](exact)
    ranked = _add_bias(scores, router.bias)
    reference = _choose_experts(ranked, router)
    changed, not_finite = {}, {}
    for each in precisions:
        lowered = router.logits_in(each.dtype)
        not_finite[each.name] = (~lowered.isfinite().all(1)).cpu().numpy()
        for part, values in _ranked_parts(router, scores, lowered, each.dtype).items():
            changed[each.name, part] = _differ(reference, _choose_experts(values, router), values)
    assert reference.margin is not None
    return ChoicesInPrecision(
        reference.margin.cpu().numpy(), _boundary_levels(ranked, reference), changed, not_finite
    )


def _ranked_parts(
    router: RouterInput, scores: Tensor, lowered: Tensor, dtype: torch.dtype
) -> dict[str, Tensor]:
    """What is ranked, (T, E), where this part of the router is computed in `dtype`."""
    score = SCORES_IN_ANY_DTYPE[router.score]
    from_logits, own = score(lowered.double()), score(lowered)
    if router.bias is None:
        return {"logits": from_logits, "whole": own}
    bias = router.bias.to(dtype)
    return {
        "logits": from_logits + router.bias,
        "bias": scores + bias.double(),
        "both": from_logits + bias.double(),
        "whole": own + bias,
    }


def _add_bias(scores: Tensor, bias: Tensor | None) -> Tensor:
    return scores if bias is None else scores + bias


def _choose_experts(ranked: Tensor, router: RouterInput) -> Routing:
    # what is no number is the worst; such tokens are counted as changed
    finite = ranked.nan_to_num(nan=torch.finfo(ranked.dtype).min)
    return route(finite, router.top_k, groups=router.groups)


def _differ(reference: Routing, other: Routing, values: Tensor) -> _Flags:
    """(T,) whether the sets of experts differ, or what was ranked is no number."""
    sets = [each.experts.sort(1).values for each in (reference, other)]
    flags = (sets[0] != sets[1]).any(1) | ~values.isfinite().all(1)
    return flags.cpu().numpy()


def _boundary_levels(ranked: Tensor, choice: Routing) -> NDArray[np.float64]:
    """The larger magnitude of the K-th ranked number and of the next one."""
    assert choice.runner_up is not None
    assert choice.margin is not None
    kth = ranked.gather(1, choice.experts[:, -1:]).squeeze(1)
    following = torch.where(choice.margin.isinf(), kth, kth - choice.margin)
    return torch.maximum(kth.abs(), following.abs()).cpu().numpy()
