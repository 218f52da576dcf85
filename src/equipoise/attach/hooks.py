"""Where hooks go on a model, and hooks that a copy of a balanced model brought with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.count.forward_context import ForwardContext
from equipoise.attach.find.routers import plain_name


def check_balanceable(model: Any) -> None:
    """What cannot be balanced at all, and why."""
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


def models_around(model: nn.Module, blocks: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """The model, and the models inside it that hold routers: outside of any numbered layer.

    All of them, since a wrapper may call an inner model's forward without its hooks, as PEFT does.
    """
    paths = [
        path for path, module in model.named_modules() if any(module is block for block in blocks)
    ]
    above = {"" if not parts else ".".join(parts) for path in paths for parts in _outer_paths(path)}
    for path, module in model.named_modules():
        if path in above and (path == "" or hasattr(module, "config")):
            yield module


def _outer_paths(path: str) -> Iterator[list[str]]:
    parts = path.split(".")
    for length in range(len(parts)):
        if length and parts[length - 1].isdigit():
            return
        yield parts[:length]


def clear_copied_hooks(model: nn.Module) -> dict[str, Tensor]:
    """Take the hooks of a model that was copied off it, and return the shifts it was given."""
    shifts = {}
    for path, module in model.named_modules():
        for hook in _hooks_of(module):
            owner = getattr(hook, "__self__", None)
            if (
                isinstance(owner, ForwardContext | BalancedRouter)
                and (owner if isinstance(owner, ForwardContext) else owner.context).live
            ):
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
