"""Make a router's balancer: one with a shift, since a model's router can be given nothing else."""

from __future__ import annotations

from equipoise.balancing import Dual, resolve_balancer
from equipoise.balancing.resolve import BalancerFactory

Maker = str | BalancerFactory


def make_dual(maker: Maker, options: dict[str, object], num_experts: int, top_k: int) -> Dual:
    """By name with options, or by a function of (num_experts, top_k)."""
    made = resolve_balancer(maker, num_experts, top_k, options, per_layer=True)
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
    if made.uses_sequences:
        raise ValueError(
            f"{name} follows each sequence, and a model's router does not show where one begins: "
            "choose deepseek, quantile ..., or build the layer with LayerBalancer"
        )
    return made


def maker_name(maker: Maker) -> str:
    """What to call it in messages."""
    if isinstance(maker, str):
        return maker
    return str(getattr(maker, "__name__", type(maker).__name__))
