"""settled: evaluate or export a model by its settled shifts (settling.py), then restore it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from equipoise.balancing.shift.dual import Dual


@contextlib.contextmanager
def settled(model: torch.nn.Module) -> Iterator[None]:
    """Route by the settled shifts inside the block, to evaluate or to export; the iterates are put
    back after it.

    Do not train inside.

    Args:
        model: any module that holds balancers.

    Example:
        >>> model = equipoise.MoE(16, 32, num_experts=8, top_k=2).eval()
        >>> with equipoise.settled(model):
        ...     output = model(torch.randn(4, 16)).output
    """
    duals = [module for module in model.modules() if isinstance(module, Dual)]
    iterates = [dual.shift.clone() for dual in duals]
    try:
        for dual in duals:
            dual.settle()
        yield
    finally:
        for dual, iterate in zip(duals, iterates, strict=True):
            dual.shift.copy_(iterate)
