"""Hub kernels: forwards that transformers' `use_kernels=True` put in the place of a module's own.

The `kernels` package sets `module.forward` to the forward of a layer it fetched. Such a forward may
choose experts without any torch.topk and without calling the modules inside: a router would then be
learnt, shifted and counted by hooks that never run. A kernel must be a drop-in of the class's own
forward, which is still there: a gate runs that one while it is balanced. The kernel of a whole
block computes the experts too, and there is nothing below it to attach to: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn

_LAYER_NAME = "kernel_layer_name"
"""what `kernels` notes on a class whose forward it may replace"""


def runs_kernel(module: nn.Module) -> bool:
    """Whether a kernel stands in the place of the module's own forward."""
    placed = vars(module).get("forward")
    return (
        hasattr(type(module), _LAYER_NAME)
        and isinstance(placed, MethodType)
        and placed.__self__ is module
        and placed.__func__ is not type(module).forward
    )


class ClassForward:
    """The forward of a module's class.

    An object and no bound method, which would be pickled by its name and found again as whatever
    stands in its place.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.module).forward(self.module, *args, **kwargs)


def own_forward(module: nn.Module) -> Callable[..., Any]:
    """The forward to learn a router from: its class's own, where a kernel stands in its place."""
    return ClassForward(module) if runs_kernel(module) else module.forward


def check_block_kernel(name: str, block: nn.Module) -> None:
    """Refuse a block whose whole forward is a kernel."""
    if runs_kernel(block):
        layer = getattr(type(block), _LAYER_NAME)
        raise ValueError(
            f"{name} runs the Hub kernel {layer!r} in place of its own forward: the kernel chooses "
            "experts inside, where nothing can be counted or shifted. Load the model without "
            f"use_kernels=True, or without a kernel for {layer!r} (KernelConfig), or leave this "
            f"router out by skip=[{name!r}]"
        )
