"""Where hooks go on a model, and hooks that a copy of a balanced model brought with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.count.forward_context import ForwardContext
from equipoise.attach.find.placement import check_placement
from equipoise.attach.find.quirks import has_picture_router
from equipoise.attach.find.routers import plain_name


def check_balanceable(model: object) -> None:
    """Refuse what cannot be balanced at all."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"a model to balance is a torch.nn.Module, not {type(model).__name__}: put parts of "
            "one into a ModuleList"
        )
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "call equipoise.balance outside of torch.inference_mode(): what is made in it can "
            "never be updated"
        )
    check_placement(model)


def watch_forwards(
    model: nn.Module, blocks: Sequence[nn.Module], context: ForwardContext
) -> list[RemovableHandle]:
    """Let the context see every forward that may reach the blocks."""
    handles: list[RemovableHandle] = []
    for module in models_around(model, blocks):
        handles += context.watch(module)
    for module in model.modules():
        if has_picture_router(module):
            handles.append(context.watch_pictures(module))
    return handles


def models_around(model: nn.Module, blocks: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """The model, and the models inside it that hold routers: outside of any numbered layer.

    All of them, since a wrapper may call an inner model's forward without its hooks, as PEFT does.
    """
    paths = [
        path for path, module in model.named_modules() if any(module is block for block in blocks)
    ]
    above = {".".join(parts) for path in paths for parts in _outer_paths(path)}
    for path, module in model.named_modules():
        if path in above and (path == "" or hasattr(module, "config")):
            yield module


def _outer_paths(path: str) -> Iterator[list[str]]:
    """The parts of every path that leads to this one, from "" up to its first numbered layer."""
    parts = path.split(".")
    for length in range(len(parts)):
        if length and parts[length - 1].isdigit():
            return
        yield parts[:length]


def clear_copied_hooks(model: nn.Module) -> dict[str, Tensor]:
    """Remove the hooks that came with a copy of a balanced model, and return its shifts by router.

    A model that is balanced itself is refused.
    """
    shifts = {}
    for path, module in model.named_modules():
        for hook in _hooks_of(module):
            owner = getattr(hook, "__self__", None)
            if not isinstance(owner, ForwardContext | BalancedRouter):
                continue
            context = owner if isinstance(owner, ForwardContext) else owner.context
            if context.attached:
                name = plain_name(path) or type(model).__name__
                raise ValueError(
                    f"{name} is being balanced already: call detach() on that balancing first"
                )
            if isinstance(owner, BalancedRouter):
                shifts[owner.name] = owner.balancer.shift.clone()
                owner.detach()
    return shifts


def _hooks_of(module: nn.Module) -> list[Any]:
    patched = [vars(module).get(name) for name in ("forward", "route_tokens_to_experts")]
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values(), *patched]
