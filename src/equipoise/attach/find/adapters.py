"""What others do to a model in the same forward: adapters that are off, and losses that balance."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn


def adapters_are_off(model: nn.Module) -> bool:
    """Whether PEFT's adapters are switched off now, as inside `disable_adapter()`.

    One adapted layer tells it for all: PEFT switches them together.
    """
    if "peft" not in sys.modules:
        return False
    for module in model.modules():
        name = "_disable_adapters"
        off = vars(module).get(name, getattr(type(module), name, None))
        if isinstance(off, bool):
            return off
    return False


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
