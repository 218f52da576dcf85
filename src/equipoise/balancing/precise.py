"""Modules whose numbers keep their precision whatever is done to the model around them.

At update_rate 1e-3 a bf16 shift stops moving at 0.5, and bf16 counts flip signs. So .half(),
.bfloat16() and .to(dtype) move these buffers to another device but never to another dtype.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn


class Precise(nn.Module):
    """A module whose buffers keep their dtype, and that loads a state whole or not at all."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
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
        error_messages: list[str] = lists[-1]
        for name, mine in self._buffers.items():
            theirs = state_dict.get(prefix + name)
            if mine is None or theirs is None or name in self._non_persistent_buffers_set:
                continue
            if theirs.shape != mine.shape:
                error_messages.append(
                    f"{prefix}{name} has shape {tuple(theirs.shape)} in this state and "
                    f"{tuple(mine.shape)} here. A balancer's state belongs to its experts and "
                    "cannot be resized: nothing of it was loaded"
                )
                return
            if theirs.dtype != mine.dtype:
                if theirs.is_floating_point() and theirs.element_size() < mine.element_size():
                    warnings.warn(
                        f"{prefix}{name} was saved in {theirs.dtype} and has lost digits",
                        stacklevel=2,
                    )
                state_dict[prefix + name] = theirs.to(mine.dtype)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
