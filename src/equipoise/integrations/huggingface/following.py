"""Follow an optimizer: step after its steps, and notice those it skipped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from equipoise.integrations.huggingface.balancing import Balancing


def follow(balancing: Balancing, optimizer: torch.optim.Optimizer) -> list[Callable[[], object]]:
    """Returns what undoes it.

    A skipped step cannot be seen as it happens, but soon after: gradients are zeroed, and no step was taken from them.
    GradScaler had found an infinity, or a guard of the user's said no.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    handle = optimizer.register_step_post_hook(lambda *_: balancing.step())
    zero_grad = optimizer.zero_grad

    @functools.wraps(zero_grad)
    def watched(*args: Any, **kwargs: Any) -> None:
        if balancing.gradients_wait:
            balancing.drop()
        zero_grad(*args, **kwargs)

    optimizer.zero_grad = watched  # type: ignore[method-assign]
    return [handle.remove, lambda: vars(optimizer).pop("zero_grad", None)]
