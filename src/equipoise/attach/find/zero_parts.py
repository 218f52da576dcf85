"""Parameters that DeepSpeed ZeRO-3 holds in parts: between forwards a rank has a piece of them, in
the place of a tensor of shape (0,).

A router is probed with random stand-ins, so its own values are not needed, but their shapes are:
DeepSpeed notes them. It gathers a module's parameters around the module's forward, so a router
counts and is shifted as usual.

A bias that is a parameter (ernie4_5_moe, afmoe, laguna) would be gathered from parts that we do not
write. No optimizer moves it, so it is made what the bias of most families is: a buffer, whole on
every rank, under the same name.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator

from torch import Tensor, nn


def whole_shape(value: Tensor) -> tuple[int, ...]:
    """The shape of a tensor when it is gathered."""
    return tuple(getattr(value, "ds_shape", value.shape))


def in_parts(value: Tensor) -> bool:
    """Whether this rank does not have all of a tensor now."""
    return whole_shape(value) != tuple(value.shape)


@contextlib.contextmanager
def gathering_rests(router: nn.Module) -> Iterator[None]:
    """Inside the block the hooks that gather parameters do not run: random stand-ins are none.

    So no other hook of the router runs, where any of its parameters is DeepSpeed's.
    """
    cut_up = any(hasattr(each, "ds_shape") for each in router.parameters())
    modules = [*router.modules()] if cut_up else []
    hooks = [(each, each._forward_pre_hooks, each._forward_hooks) for each in modules]
    try:
        for each in modules:
            each._forward_pre_hooks, each._forward_hooks = OrderedDict(), OrderedDict()
        yield
    finally:
        for each, before, after in hooks:
            each._forward_pre_hooks, each._forward_hooks = before, after


def take_whole(owner: nn.Module, attribute: str, path: str) -> None:
    """Put a buffer with its values in the place of a parameter in parts. Every rank must call it.

    Refused where the parameter is trained: its optimizer would move the parts.
    """
    bias = owner._parameters.get(attribute)
    if bias is None or not hasattr(bias, "ds_shape"):
        return
    if bias.requires_grad:
        raise ValueError(
            f"{path} is a parameter that is trained (requires_grad), and DeepSpeed ZeRO-3 holds it "
            f"in parts ({whole_shape(bias)} when gathered), so it cannot be kept equal to its "
            "balancer's shift. Call requires_grad_(False) on it before deepspeed.initialize, or "
            "use ZeRO-2 or FSDP2"
        )
    values = _gathered(bias)
    del owner._parameters[attribute]
    owner.register_buffer(attribute, values)
    _keep_fetching(owner, bias)


def _gathered(bias: Tensor) -> Tensor:
    """A copy of its values, on every rank."""
    from deepspeed import zero

    with zero.GatheredParameters([bias]):
        return bias.detach().clone()


def _keep_fetching(owner: nn.Module, bias: Tensor) -> None:
    """Let DeepSpeed gather it as before: its prefetch replays the parameters of the first step, and
    stops a training in which one is missing.
    """
    from deepspeed import zero

    zero.register_external_parameter(owner, bias)
