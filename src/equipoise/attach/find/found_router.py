"""FoundRouter: one place in a model where tokens choose experts, and what it is called."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from equipoise.attach.find.bias import Bias
from equipoise.attach.find.quirks import capacity_attribute
from equipoise.attach.find.routing_spec import RoutingSpec

# names that wrappers add to a module's path; never part of a router's name
_WRAPPERS = re.compile(
    r"\b(base_model\.model|module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module"
    r"|_forward_module|_original_module)\."
)


@dataclass(frozen=True, eq=False)
class FoundRouter:
    """One place where tokens choose experts."""

    name: str
    """of its block in the model, without wrappers: the same with and without PEFT, DDP and
    torch.compile
    """
    block: nn.Module
    gate: nn.Module
    experts: nn.Module
    layer: nn.Module
    """the decoder layer it belongs to"""
    spec: RoutingSpec
    bias: Bias | None

    @property
    def called_one_by_one(self) -> bool:
        """Whether the experts are only a list: the block calls each of them, and never all."""
        return type(self.experts).forward is nn.Module.forward


class LeftAlone(NamedTuple):
    """A router that is not balanced, and why."""

    name: str
    reason: str


class FoundRouters(NamedTuple):
    """What `find_routers` returns."""

    routers: list[FoundRouter]
    left_alone: list[LeftAlone]


def plain_name(path: str) -> str:
    """A module's name without what PEFT, DDP, FSDP, Fabric and torch.compile put before it."""
    return _WRAPPERS.sub("", path)


def enclosing_layer(model: nn.Module, path: str) -> nn.Module:
    """The innermost numbered ancestor: `model.layers.3` of `model.layers.3.mlp`."""
    parts = path.split(".")
    numbered = [place for place, part in enumerate(parts) if part.isdigit()]
    return (
        model.get_submodule(".".join(parts[: numbered[-1] + 1]))
        if numbered
        else model.get_submodule(path)
    )


def warn_of_capacity(name: str, *modules: nn.Module) -> None:
    """Say that a layer may drop choices after its top-K."""
    capacity = capacity_attribute(*modules)
    if capacity is not None:
        warnings.warn(
            f"{name} has {capacity}: if it drops choices after its top-K, where an expert is full, "
            "the dropped ones are counted all the same. Loads are what tokens asked for, not what "
            "was dispatched",
            stacklevel=7,
        )
