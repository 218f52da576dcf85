"""Follow an optimizer: step after its steps, and notice those it skipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from equipoise.attach.balance import Balancing


class ZeroGrad:
    """An optimizer's or a model's `zero_grad`, which notices that no step was taken from the
    gradients it throws away.

    An object and not a function, so that a copy of the model zeroes the copy.
    """

    def __init__(self, balancing: Balancing | None, own: Callable[..., Any]) -> None:
        self.balancing = balancing
        self.own = own

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self.balancing is not None and self.balancing.gradients_wait:
            self.balancing.drop()
        self.own(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> ZeroGrad:
        return ZeroGrad(None, copy.deepcopy(self.own, memo))


def check_optimizer(optimizer: Any) -> None:
    inner = getattr(optimizer, "optimizer", optimizer)
    if not hasattr(inner, "register_step_post_hook"):
        raise TypeError(
            "optimizer= takes a torch optimizer, or accelerate's, not "
            f"{type(optimizer).__name__}: with another, call "
            "balancing.step() after its steps"
        )


def follow_optimizer(
    balancing: Balancing, optimizer: torch.optim.Optimizer
) -> list[Callable[[], object]]:
    """Returns what undoes it.

    A skipped step cannot be seen as it happens, but soon after: gradients are zeroed, by the
    optimizer or by the model, and no step was taken from them. GradScaler had found an infinity, or
    a guard of the user's said no.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    handle = optimizer.register_step_post_hook(lambda *_: balancing.step())
    undo: list[Callable[[], object]] = [handle.remove]
    for owner in (optimizer, balancing.model):
        if getattr(vars(owner).get("zero_grad"), "balancing", None) is not balancing:
            undo.append(_patch_zero_grad(owner, ZeroGrad(balancing, owner.zero_grad)))
    return undo


def _patch_zero_grad(owner: Any, zero_grad: ZeroGrad) -> Callable[[], object]:
    before = vars(owner).get("zero_grad")
    owner.zero_grad = zero_grad

    def undo() -> None:
        zero_grad.balancing = (
            None  # another balancing may have wrapped it: then it stays, and does nothing
        )
        if vars(owner).get("zero_grad") is not zero_grad:
            return
        if before is None:
            del owner.zero_grad
        else:
            owner.zero_grad = before

    return undo
