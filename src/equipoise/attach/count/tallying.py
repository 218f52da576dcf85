"""Make a Tally of what a model's own router chose.

A rule that needs only loads is given loads. A rule that looks at scores is given the routing that
`equipoise.route` finds from the same scores, with the model's own choice put in its place: on ties,
and in bf16, we might have chosen otherwise.
"""

from __future__ import annotations

from torch import Tensor

from equipoise.attach.find.routers import FoundRouter
from equipoise.balancing import Dual
from equipoise.routing import Groups, Tally, route
from equipoise.routing.kernels.reference import count_loads


def check_countable(found: FoundRouter, balancer: Dual) -> None:
    """Refuse a router that does not show its choice, and a balancer that looks at scores for one
    that does not show them.
    """
    if found.bias is not None and found.called_one_by_one and not found.spec.returns_choice:
        raise ValueError(
            f"{found.name} calls its experts one by one (a {type(found.experts).__name__}), and "
            "its gate does not return the indices of those it chose, so they cannot be counted: "
            "let the gate return them, (..., K) int64, or leave it out by "
            f"skip=[{found.name!r}]"
        )
    if not balancer.needs_scores:
        return
    spec = found.spec
    if found.bias is not None and spec.logits_at is None:
        raise ValueError(
            f"this balancer looks at scores, but the gate of {found.name} does not return its "
            "logits in this transformers: choose one that needs loads only (deepseek, "
            "proportional, moonlight ...), or upgrade transformers"
        )
    if spec.groups is not None and spec.group_worth != "top2":
        raise ValueError(
            f"this balancer looks at scores, but {found.name} chooses its groups in a way that "
            "cannot be followed: choose one that needs loads only (deepseek, proportional, "
            "moonlight ...)"
        )


def make_tally(
    balancer: Dual,
    experts: Tensor,
    scores: Tensor | None,
    *,
    shifted: Tensor | None,
    groups: Groups | None,
    padding: Tensor | None,
) -> Tally:
    """Count one call of a router.

    Args:
        balancer: moved to the device of the experts first, where it is on another.
        experts: (T, K) int64, what the model chose.
        scores: (T, E) unshifted, or None where the balancer needs loads only.
        shifted: (T, E) what the choice was made by.
        groups: of the router.
        padding: (T,) bool, tokens that are left out.
    """
    loads = count_loads(experts, balancer.num_experts, padding)
    if balancer.steps.device != loads.device:
        balancer.to(loads.device)
    if scores is None or not balancer.needs_scores:
        return Tally(loads, loads.unsqueeze(0), balancer.steps.clone())
    routing = route(scores, balancer.top_k, choose_by=shifted, groups=groups, mask=padding)
    return balancer.tally(scores, routing._replace(experts=experts, loads=loads))
