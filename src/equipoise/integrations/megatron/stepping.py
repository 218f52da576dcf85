"""The update of all routers, once per global batch, where Megatron updates its own biases.

That is in finalize_model_grads, after the backward passes of all micro-batches and before the
optimizer's step. So, as with Megatron's own bias, a step that the optimizer then skips (a gradient
that is not finite) has moved the shifts all the same.

finalize_model_grads is imported by name in many places, and replacing it would miss those. One
function that it calls in every release, with the model and whatever the config says, is replaced
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from equipoise.integrations.megatron.topk_router import BalancedRouting
from equipoise.integrations.megatron.tracking import record_loads
from equipoise.routing import Tally, reduce
from equipoise.storage.optional import import_optional

_FINALIZE_MODULE = "megatron.core.distributed.finalize_model_grads"
_CALLED_ALWAYS = "_allreduce_conditional_embedding_grads"


def router_step(model: nn.Module | Sequence[nn.Module]) -> None:
    """Update the balancers of all our routers in a model, by what was counted since the last step.

    Megatron's finalize_model_grads does so itself. Call this only in a training loop that does
    without it, once per global batch, on every rank.

    Args:
        model: a model, or its chunks as Megatron has them under interleaved pipelines.
    """
    routers = balanced_routers(model)
    if not routers:
        raise ValueError(
            "there is no router of equipoise's in this model: build it with "
            "MoESubmodules(router=equipoise.integrations.megatron.router(...))"
        )
    step_routers(routers)


def balanced_routers(model: nn.Module | Iterable[nn.Module]) -> list[BalancedRouting]:
    """Our routers in a model or its chunks, each once."""
    chunks = [model] if isinstance(model, nn.Module) else model
    found = {
        id(module): module
        for chunk in chunks
        for module in chunk.modules()
        if isinstance(module, BalancedRouting)
    }
    return list(found.values())


@torch.no_grad()
def step_routers(routers: Sequence[BalancedRouting]) -> None:
    """One collective for all layers, then one update for each."""
    updated = [router for router in routers if router.is_updated]
    if not updated:
        return
    if all(router.counter.tally is None for router in updated):
        raise RuntimeError(
            "equipoise's routers have counted nothing since the last step: no training forward "
            "(model.train(), with gradients) went through them. Is router_step called beside "
            "finalize_model_grads?"
        )
    tallies = _sum_over_ranks(updated)
    something_trains = any(router.weight.requires_grad for router in updated)
    for router, tally in zip(updated, tallies, strict=True):
        router.loads = tally.loads
        if router.weight.requires_grad or not something_trains:
            router.balancer.update(tally)
    record_loads(updated, min(len(tally.forwards) for tally in tallies))


def _sum_over_ranks(routers: Sequence[BalancedRouting]) -> list[Tally]:
    """Their tallies, taken and summed; routers of one model have one group."""
    groups = [router.token_group for router in routers]
    tallies = [router.take_tally() for router in routers]
    for group in dict.fromkeys(groups):
        mine = [place for place, other in enumerate(groups) if other is group]
        summed = reduce([tallies[place] for place in mine], group)
        for place, tally in zip(mine, summed, strict=True):
            tallies[place] = tally
    return tallies


class StepInFinalize:
    """Megatron's function, after which our routers are updated."""

    def __init__(self, own: Callable[..., Any]) -> None:
        self.own = own

    def __call__(self, model: Sequence[nn.Module], *args: Any, **kwargs: Any) -> Any:
        answer = self.own(model, *args, **kwargs)
        step_routers(balanced_routers(model))
        return answer


def hook_finalize() -> None:
    """Let finalize_model_grads update our routers. Once is enough; other models do not notice."""
    module = import_optional(_FINALIZE_MODULE, extra="megatron")
    own = getattr(module, _CALLED_ALWAYS, None)
    if own is None:
        raise ValueError(
            f"{_FINALIZE_MODULE} of this megatron-core has no {_CALLED_ALWAYS}: equipoise knows "
            "0.12 to 0.20. Use router(..., step_in_finalize=False), and router_step(model)"
        )
    if not isinstance(own, StepInFinalize):
        setattr(module, _CALLED_ALWAYS, StepInFinalize(own))


def unhook_finalize() -> None:
    """Undo `hook_finalize`: from now on only router_step updates."""
    module = import_optional(_FINALIZE_MODULE, extra="megatron")
    own = getattr(module, _CALLED_ALWAYS, None)
    if isinstance(own, StepInFinalize):
        setattr(module, _CALLED_ALWAYS, own.own)
