"""From what people write to a balancer: a name with options, a Balancer, or a function that makes
one.

    resolve_balancer("deepseek", 64, 6, {"update_rate": 1e-3})
    resolve_balancer(lambda num_experts, top_k: Dual(...), 64, 6)
    resolve_balancer(equipoise.balancer("quantile", 64, top_k=6), 64, 6)

Layers, models, `equipoise.balance`, the integrations, training and the arena all ask here, so that
what one of them accepts the others accept too, with the same errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from equipoise.balancing.balancer import Balancer
from equipoise.balancing.spec import method_spec, method_specs

BalancerFactory = Callable[[int, int], Balancer]
"""(num_experts, top_k) to a new balancer"""
BalancerSource = str | Balancer | BalancerFactory


def balancers() -> list[str]:
    """The names `balancer` knows.

    Example:
        >>> "curvature" in equipoise.balancers()
        True
    """
    return [spec.name for spec in method_specs()]


def balancer(name: str, num_experts: int, *, top_k: int, **options: object) -> Balancer:
    """A balancer by name: `equipoise.balancer("deepseek", 64, top_k=6, update_rate=1e-3)`.

    Args:
        name: one of `equipoise.balancers()`.
        num_experts: E.
        top_k: K.
        **options: the method's own (its signature in equipoise.balancing.presets), and `target`,
            weights of unequal loads.

    Example:
        >>> equipoise.balancer("deepseek", 64, top_k=6, update_rate=1e-2)
        deepseek(num_experts=64, top_k=6, update_rate=0.01)
    """
    return method_spec(name).make(num_experts, top_k, **options)


def resolve_balancer(
    source: BalancerSource,
    num_experts: int,
    top_k: int,
    options: Mapping[str, object] | None = None,
    *,
    per_layer: bool = False,
) -> Balancer:
    """A balancer for top `top_k` of `num_experts`.

    Args:
        source: a name of `equipoise.balancers()`, a Balancer of this size, or a function
            (num_experts, top_k) -> Balancer.
        num_experts: E.
        top_k: K.
        options: of a balancer by name.
        per_layer: whether several layers ask with the same source. A Balancer is then refused:
            every layer needs its own, since each has its own loads.
    """
    if isinstance(source, str):
        return balancer(source, num_experts, top_k=top_k, **(options or {}))
    if options:
        raise TypeError(
            f"options ({', '.join(options)}) are for balancers by name: set them in your "
            f"{'Balancer' if isinstance(source, Balancer) else 'function'}"
        )
    if isinstance(source, Balancer) and per_layer:
        raise TypeError(
            "a Balancer belongs to one layer, and here every layer needs its own: pass a name, or "
            "a function (num_experts, top_k) -> Balancer"
        )
    made = source if isinstance(source, Balancer) else _call_factory(source, num_experts, top_k)
    if (made.num_experts, made.top_k) != (num_experts, top_k):
        raise ValueError(
            f"the balancer is for top {made.top_k} of {made.num_experts} experts, the layer for "
            f"top {top_k} of {num_experts}"
        )
    return made


def _call_factory(factory: BalancerFactory, num_experts: int, top_k: int) -> Balancer:
    """What the function makes, if it is a function and makes a Balancer."""
    if not callable(factory):
        raise TypeError(
            "a balancer is given by its name, as a Balancer, or as a function (num_experts, "
            f"top_k) -> Balancer, not as {factory!r}"
        )
    made = factory(num_experts, top_k)
    if not isinstance(made, Balancer):
        raise TypeError(f"the function given as a balancer returned {made!r}, which is no Balancer")
    return made
