"""Run a module with other tensors in place of its own.

Not by torch.func.functional_call: where one module has two names in its parent (`self.router =
self.gate`), it leaves the other tensors in it (torch 2.13).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn


@contextlib.contextmanager
def stand_ins(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside the block, parameters and buffers of these names are these tensors."""
    owners: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for path, tensor in tensors.items():
            *parents, name = path.split(".")
            owner = module.get_submodule(".".join(parents))
            held: dict[str, Any] = (
                owner._parameters if name in owner._parameters else owner._buffers
            )
            owners.append((held, name, held[name]))
            held[name] = tensor
        yield
    finally:
        for held, name, own in reversed(owners):
            held[name] = own
