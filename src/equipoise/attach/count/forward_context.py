"""ForwardContext: what routers must know of the forward they run in, and cannot see themselves.

A router sees hidden states and nothing else. Whether these tokens are trained on, and which of them
are padding, is known where the model is called: so every module that takes an `attention_mask` and
holds routers is watched from outside.

A forward counts if it trains: gradients are on where the *model* is called (under reentrant
checkpointing they are off where the router is called), the router's block is in training mode, and
no backward pass is running (checkpointing recomputes there).
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import (
    _disable_dynamo as eager,  # hooks run between compiled graphs, never inside one
)

__all__ = ["ForwardContext", "check_backward_is_seen", "eager", "in_backward"]


def in_backward() -> bool:
    """Whether autograd is running a backward pass in this thread: then a forward is a
    recomputation.
    """
    return torch._C._current_graph_task_id() != -1


@functools.cache
def check_backward_is_seen() -> None:
    """The function above is private to torch: make sure that it still tells what it should."""
    if not _backward_is_seen():
        raise RuntimeError(
            f"torch {torch.__version__} no longer tells whether a backward pass is running: "
            "tokens would be counted twice "
            "under gradient checkpointing. Please report this; until then use torch 2.13"
        )


def _backward_is_seen() -> bool:
    seen: list[bool] = []
    try:
        with torch.enable_grad():
            probe = torch.ones(1, requires_grad=True)
            probe.register_hook(lambda _: seen.append(in_backward()))
            probe.sum().backward()
        return seen == [True] and not in_backward()
    except AttributeError:
        return False


class ForwardContext:
    """The forward that is running, shared by all routers of a model. A copy of a model has a context
    that counts nothing.
    """

    def __init__(self) -> None:
        self.live = True
        self.records = False
        """whether forwards are seen that do not train: where scores are recorded and nothing learns
        """
        self.depth = 0
        self.trains = False
        self.backward_seen = False
        """whether gradients were computed since the last step"""
        self.kinds: Tensor | None = None
        """(T,) bool: tokens of a picture, where a layer has routers of its own for them
        (ernie4_5_vl_moe)
        """
        self.begins: Callable[[], None] | None = None
        """called where a training forward begins"""
        self.fails: Callable[[], None] | None = None
        """called where a training forward ends in an exception: out of memory, and tried again with
        less
        """
        self._padding: Tensor | None = None
        self._place: dict[nn.Module, int] = {}
        self._warned = False

    def __deepcopy__(self, memo: dict[int, Any]) -> ForwardContext:
        copy = memo[id(self)] = ForwardContext()
        copy.live = False
        return copy

    def attach(self, module: nn.Module) -> list[Any]:
        """Watch a module that takes an attention_mask."""
        names = list(inspect.signature(module.forward).parameters)
        if "attention_mask" in names:
            self._place[module] = names.index("attention_mask")
        before = module.register_forward_pre_hook(self.enter, prepend=True, with_kwargs=True)
        return [before, module.register_forward_hook(self.leave, always_call=True)]

    @eager
    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.live:
            return
        outermost = self.depth == 0
        if outermost:
            self.trains = torch.is_grad_enabled() and not in_backward()
            self._padding = None
            if self.trains and module.training and self.begins is not None:
                self.begins()
        self.depth += 1
        mask = kwargs.get("attention_mask")
        place = self._place.get(module)
        if mask is None and place is not None and place < len(args):
            mask = args[place]
        if isinstance(mask, Tensor) and mask.dim() == 2:
            self._padding = (mask == 0).flatten()
        elif mask is not None and outermost and self.trains and not self._warned:
            self._warned = True
            warnings.warn(
                "attention_mask is not of shape (batch, sequence): what is padding cannot be "
                "told, and all is counted",
                stacklevel=2,
            )

    @eager
    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.depth:
            self.depth -= 1
        if self.depth == 0:
            if (
                output is None and self.trains and self.fails is not None
            ):  # torch hands over None after an exception
                self.fails()
            self._padding = self.kinds = None
            self.trains = False

    @eager
    def see_kinds(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kinds = kwargs.get("moe_mm_token_type_ids", args[1] if len(args) > 1 else None)
        self.kinds = None if kinds is None else kinds.bool().flatten()

    def counts(self, block: nn.Module) -> bool:
        """Whether what this block routes now is to be counted."""
        if self.records:
            return self.live
        if not self.live or not block.training:
            return False
        if in_backward():
            self.backward_seen = True
            return False
        return self.trains if self.depth else torch.is_grad_enabled()

    def padding(self, name: str, num_tokens: int) -> Tensor | None:
        """(T,) bool, True for padding, of the tokens a router sees; None where there is none."""
        padding = self._padding
        if padding is None:
            return None
        if self.kinds is not None and len(self.kinds) == len(padding) and self.kinds.any():
            padding = padding[self.kinds if name.endswith("vision_moe") else ~self.kinds]
        if len(padding) != num_tokens:
            if not padding.any():
                return None
            raise ValueError(
                f"{name} routes {num_tokens} tokens, but attention_mask has {len(padding)}: "
                "which of them are padding cannot "
                "be told. Pass unpadded (packed) batches, or leave this router out by skip=[...]"
            )
        return padding
