"""Make a router's balancer: one with a shift, since a model's router can be given nothing else."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.balancing import Balancer, Dual, balancer

Maker = str | Callable[[int, int], Balancer]


def make_dual(maker: Maker, options: dict[str, object], num_experts: int, top_k: int) -> Dual:
    """By name with options, or by a function of (num_experts, top_k)."""
    if isinstance(maker, str):
        made = balancer(maker, num_experts, top_k=top_k, **options)
    elif options:
        raise TypeError(
            f"options ({', '.join(options)}) are for balancers by name: set them in your function"
        )
    else:
        made = maker(num_experts, top_k)
    name = maker if isinstance(maker, str) else type(made).__name__
    if not isinstance(made, Dual):
        raise ValueError(
            f"{name} has no shift, and a model's router can be given nothing else: choose "
            "deepseek, quantile ..."
        )
    if made.penalties:
        raise ValueError(
            f"{name} adds a penalty to the loss, which a model's own loss does not know: choose "
            "deepseek, quantile ..."
        )
    return made
