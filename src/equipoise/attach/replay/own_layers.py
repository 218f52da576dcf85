"""record_experts and replay_experts: for models whose layers are equipoise's own.

A model that `equipoise.balance` was attached to has the same as methods of its balancing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import nn

from equipoise.attach.find.found_router import plain_name
from equipoise.attach.replay.expert_choices import ExpertChoices
from equipoise.attach.replay.forced_loads import Force, given_or_forced
from equipoise.attach.replay.given_experts import GivenExperts
from equipoise.attach.replay.layer_exchange import LayerExchange
from equipoise.attach.replay.replay_report import ReplayReport
from equipoise.attach.replay.sessions import ReplayTerms, recorded_experts, replayed_experts
from equipoise.layers.choosing_layer import ChoosingLayer


def record_experts(
    model: nn.Module, margins: bool = False
) -> AbstractContextManager[ExpertChoices]:
    """Keep the experts that every token takes in the forwards of a block, of a model of
    equipoise's own layers (MoE, Router, LayerBalancer, DeepSeekMoE).

    Args:
        model: any module that holds such layers, wrapped or not.
        margins: also by how much each choice was made.

    Returns:
        A context manager that gives an ExpertChoices: (T, K) by layer, `save`, `load`.

    Example:
        >>> layer = equipoise.MoE(8, 16, num_experts=4, top_k=2)
        >>> with equipoise.record_experts(layer) as recording:
        ...     output = layer(torch.randn(2, 5, 8)).output
        >>> recording["router"].shape
        (10, 2)
    """
    return recorded_experts([each.choices for each in _exchanges_in(model)], margins)


def replay_experts(
    model: nn.Module,
    experts: GivenExperts | None = None,
    *,
    force: Force = None,
    devices: int = 1,
    tally: str = "none",
    floor: float = 0.0,
) -> AbstractContextManager[ReplayReport]:
    """Let equipoise's own layers take these experts in the forwards of a block, with gates from
    their own scores, in recomputations too (docs/replay.md).

    Args:
        model: any module that holds MoE, Router or LayerBalancer layers, wrapped or not.
        experts: (T, K) by layer's name or index, or (..., layers, K); -1 routes a token live.
        force: "balanced", or a weight for each expert, in place of `experts`.
        devices: that share the experts of a layer, for `force="balanced"`.
        tally: "none": the shift rests; "own": count what the routers would have chosen.
        floor: a given expert is taken only where its own score is at least this share of that of
            the weakest expert the router itself would take; its place is routed live.

    Returns:
        A context manager that gives a ReplayReport: `live_share`, `refused_share`.

    Example:
        >>> layer = equipoise.MoE(8, 16, num_experts=4, top_k=2).eval()
        >>> with equipoise.replay_experts(layer, force="balanced"):
        ...     layer(torch.randn(2, 5, 8)).routing.loads
        tensor([5, 5, 5, 5])
    """
    exchanges = [each.choices for each in _exchanges_in(model)]
    terms = ReplayTerms(tally, floor)
    return replayed_experts(exchanges, given_or_forced(experts, force, devices), terms)


def _exchanges_in(model: nn.Module) -> Sequence[LayerExchange]:
    """Of every layer, in order; made where they are first needed."""
    layers = {
        plain_name(path) or type(module).__name__: module
        for path, module in model.named_modules()
        if isinstance(module, ChoosingLayer)
    }
    if not layers:
        raise ValueError(
            f"{type(model).__name__} holds no MoE, Router or LayerBalancer of equipoise: for a "
            "model that equipoise.balance is attached to, use balancing.record_experts() and "
            "balancing.replay(...)"
        )
    return [_exchange_of(name, layer) for name, layer in layers.items()]


def _exchange_of(name: str, layer: ChoosingLayer) -> LayerExchange:
    exchange = layer.exchange
    if not isinstance(exchange, LayerExchange):
        exchange = layer.exchange = LayerExchange(name, layer)
    # a part of a model may have been asked first, under a shorter name
    exchange.choices.rename(name)
    return exchange
