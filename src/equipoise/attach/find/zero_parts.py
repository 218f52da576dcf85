"""Parameters that DeepSpeed ZeRO-3 holds in parts: between forwards a rank has a piece of them, in
the place of a tensor of shape (0,).

A router is probed with random stand-ins, so its own values are not needed, but their shapes are:
DeepSpeed notes them. It gathers a module's parameters around the module's forward, so a router
counts and is shifted as usual.
"""

from __future__ import annotations

from torch import Tensor


def whole_shape(value: Tensor) -> tuple[int, ...]:
    """The shape of a tensor when it is gathered."""
    return tuple(getattr(value, "ds_shape", value.shape))


def in_parts(value: Tensor) -> bool:
    """Whether this rank does not have all of a tensor now."""
    return whole_shape(value) != tuple(value.shape)


def check_whole(bias: Tensor, path: str) -> None:
    """Refuse a bias in parts: a parameter, though no optimizer moves it. A bias that is a buffer
    (DeepSeek-V3, GLM) stays whole.
    """
    if in_parts(bias):
        raise ValueError(
            f"{path} is a parameter, and DeepSpeed ZeRO-3 holds it in parts: its shape is "
            f"{tuple(bias.shape)}, and {whole_shape(bias)} when gathered, so it cannot be kept "
            "equal to its balancer's shift. Use ZeRO-2 or FSDP2 for this family"
        )
