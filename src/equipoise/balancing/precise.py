"""Modules whose numbers keep their precision whatever is done to the model around them.

At update_rate 1e-3 a bf16 shift stops moving at 0.5, and bf16 counts flip signs. So .half(),
.bfloat16() and .to(dtype) move these buffers to another device but never to another dtype, and
torch.set_default_dtype does not choose it: every buffer says its own.

A model may be built on the meta device and get memory later, by to_empty(). That memory holds
anything; these buffers then have their first values, as if they had been made there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn


class Precise(nn.Module):
    """A module whose buffers keep their dtype, and that loads a state whole or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self._first_values: dict[str, Tensor] = {}

    def keep_buffer(
        self,
        name: str,
        first: float | Tensor,
        shape: tuple[int, ...] = (),
        *,
        dtype: torch.dtype = torch.float32,
        persistent: bool = True,
    ) -> None:
        """Register a buffer that begins as `first`, one number or a tensor of this shape."""
        value = torch.as_tensor(first, dtype=dtype, device="cpu").expand(shape)
        self._first_values[name] = value
        # on the device of the moment (`with torch.device(...)`), as all that torch makes
        self.register_buffer(name, torch.empty(shape, dtype=dtype), persistent=persistent)
        getattr(self, name).copy_(value)

    def first_value(self, name: str) -> Tensor:
        """What a buffer of this name began as, on the CPU."""
        return self._first_values[name].clone()

    def restore_first_values(self, device: torch.device | str) -> None:
        """Begin again, with all modules inside, on this device.

        For frameworks that give a model fresh memory, and then initialize it.
        """
        for module in self.modules():
            if isinstance(module, Precise):
                for name, value in module._first_values.items():
                    module._buffers[name] = value.to(device, copy=True)

    def upgrade_state(self, state_dict: dict[str, Tensor], prefix: str) -> None:
        """Change a state that an older release saved, in place, to what this one saves."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is None or new is None:
                continue
            if old.is_meta and not new.is_meta and name in self._first_values:
                self._buffers[name] = self._first_values[name].to(new.device, copy=True)
            elif new.dtype != old.dtype:
                # from the original: the cast one has lost digits
                self._buffers[name] = old.to(new.device)
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Tensor],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        *lists: Any,
    ) -> None:
        """Load, unless something of this module or of one inside it has another shape."""
        error_messages: list[str] = lists[-1]
        self._upgrade_states(state_dict, prefix)
        mine = self.state_dict(prefix=prefix)
        wrong = list(_wrong_shapes(mine, state_dict))
        if wrong:
            error_messages += wrong
            # what is there already: the modules inside load after this one, and must not change
            state_dict.update(mine)
        for name, here in mine.items():
            theirs = state_dict.get(name)
            if theirs is None or theirs.dtype == here.dtype:
                continue
            if theirs.is_floating_point() and theirs.element_size() < here.element_size():
                warnings.warn(
                    f"{name} was saved in {theirs.dtype} and has lost digits", stacklevel=2
                )
            state_dict[name] = theirs.to(here.dtype)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)

    def _upgrade_states(self, state_dict: dict[str, Tensor], prefix: str) -> None:
        """Upgrade the state of this module and of all inside it."""
        for path, module in self.named_modules(prefix=prefix.removesuffix(".")):
            if isinstance(module, Precise):
                module.upgrade_state(state_dict, path + "." if path else "")


def _wrong_shapes(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> Iterator[str]:
    """A sentence for each tensor of a state that has another shape."""
    for name, here in mine.items():
        if name in theirs and theirs[name].shape != here.shape:
            yield (
                f"{name} has shape {tuple(theirs[name].shape)} in this state and "
                f"{tuple(here.shape)} here. A balancer's state belongs to its experts and cannot "
                "be resized: nothing of it was loaded"
            )
