"""Follow an optimizer: step after its steps, and notice those it skipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from equipoise.attach.patching import PatchedMethod
from equipoise.layers.model_steps import ModelSteps


class StepsByOptimizer(Protocol):
    """What can follow an optimizer: a Balancing, or the ModelSteps of one's own layers."""

    model: nn.Module

    @property
    def gradients_wait(self) -> bool: ...

    def step(self) -> None: ...

    def drop(self) -> None: ...


class ZeroGrad:
    """An optimizer's or a model's `zero_grad`, which notices that no step was taken from the
    gradients it removes.

    An object and not a function, so that a copy of the model zeroes the copy.
    """

    def __init__(self, balancing: StepsByOptimizer | None, own: Callable[..., Any]) -> None:
        self.balancing = balancing
        self.own = own

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self.balancing is not None and self.balancing.gradients_wait:
            self.balancing.drop()
        self.own(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> ZeroGrad:
        return ZeroGrad(None, copy.deepcopy(self.own, memo))

    def __getstate__(self) -> dict[str, object]:
        """A pickled model zeroes itself, and has no balancing."""
        return {"balancing": None, "own": self.own}


def check_optimizer(optimizer: Any) -> None:
    """Refuse an optimizer without a hook after its steps."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if not hasattr(inner, "register_step_post_hook"):
        raise TypeError(
            "optimizer= takes a torch optimizer, or accelerate's, not "
            f"{type(optimizer).__name__}: with another, call balancing.step() after its steps"
        )


def follow_optimizer(
    balancing: StepsByOptimizer, optimizer: torch.optim.Optimizer
) -> list[Callable[[], object]]:
    """Step after every step of `optimizer`, and return the functions that undo it.

    A skipped step cannot be seen when it happens, but soon after: gradients are zeroed, by the
    optimizer or by the model, and no step was taken from them. GradScaler had found an infinity, or
    the user's own code refused the step.
    """
    # accelerate wraps the optimizer
    optimizer = getattr(optimizer, "optimizer", optimizer)
    handle = optimizer.register_step_post_hook(lambda *_: balancing.step())
    undo: list[Callable[[], object]] = [handle.remove]
    for owner in (optimizer, balancing.model):
        if getattr(vars(owner).get("zero_grad"), "balancing", None) is not balancing:
            undo.append(_patch_zero_grad(owner, balancing))
    return undo


def _patch_zero_grad(owner: Any, balancing: StepsByOptimizer) -> Callable[[], object]:
    """Replace `zero_grad` of an optimizer or a model, and return the function that undoes it."""
    zero_grad = ZeroGrad(balancing, owner.zero_grad)
    patched = PatchedMethod(owner, "zero_grad", zero_grad)

    def undo() -> None:
        # another balancing may have wrapped it: then it stays, and does nothing
        zero_grad.balancing = None
        if patched.in_place:
            patched.restore()

    return undo


class FollowedSteps(ModelSteps):
    """The LayerBalancers of a model, stepped by an optimizer until `unfollow()`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(model, group)
        check_optimizer(optimizer)
        self._undo = follow_optimizer(self, optimizer)

    def unfollow(self) -> None:
        """Follow the optimizer no more."""
        for undo in self._undo:
            undo()
        self._undo = []


def follow(
    model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None
) -> FollowedSteps:
    """Step the LayerBalancers of a model after every step of an optimizer, and drop what was
    counted where its step is skipped: instead of calling `equipoise.step(model)`.

    Args:
        model: any module that holds LayerBalancers.
        optimizer: of several, the one that steps last.
        group: as for `equipoise.step`.

    Example:
        >>> model = torch.nn.Sequential(equipoise.LayerBalancer("deepseek", 8, 2))
        >>> scores = torch.nn.Parameter(torch.rand(32, 8))
        >>> optimizer = torch.optim.SGD([scores], lr=0.1)
        >>> steps = equipoise.follow(model, optimizer)
        >>> model(scores).gates.sum().backward()
        >>> optimizer.step()
        >>> int(model[0].balancer.steps)
        1
    """
    return FollowedSteps(model, optimizer, group)
