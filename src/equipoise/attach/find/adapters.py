"""What others do to a model in the same forward: adapters that are off, and losses that balance."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn


def active_adapters(model: nn.Module) -> frozenset[str] | None:
    """The names of PEFT's adapters that act now: none of them inside `disable_adapter()`; None for
    a model without adapters.

    One adapted layer tells it for all: PEFT switches them together.
    """
    if "peft" not in sys.modules:
        return None
    for module in model.modules():
        off = _own_or_inherited(module, "_disable_adapters")
        if off is True:
            return frozenset()
        names = _own_or_inherited(module, "_active_adapter")
        names = [names] if isinstance(names, str) else names
        # a module that is saved whole for one adapter only has none while another is active
        if off is False and isinstance(names, list | tuple) and names:
            return frozenset(map(str, names))
    return None


def _own_or_inherited(module: nn.Module, name: str) -> object:
    """An attribute as PEFT's layers set it; not what a wrapper passes on of the module in it."""
    return vars(module).get(name, getattr(type(module), name, None))


def auxiliary_loss(model: nn.Module, arguments: Mapping[str, object]) -> float:
    """The coefficient of a load-balancing loss that the model, or its trainer, adds in this
    forward: 0 where none is added.
    """
    config: Any = getattr(model, "config", None)
    for each in (config, getattr(config, "text_config", None)):
        asked = arguments.get("output_router_logits")
        shown = getattr(each, "output_router_logits", False) if asked is None else asked
        coefficient = getattr(each, "router_aux_loss_coef", None)
        if shown and coefficient:
            return float(coefficient)
    return 0.0
