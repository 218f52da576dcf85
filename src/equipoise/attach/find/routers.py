"""Find the routers of a model by structure.

A block that routes has a child called `experts` and, beside it, one child that chooses: the gate.
What the gate does is learnt by watching it (probe.py). There is no list of families: a new one is
found if it has this structure, and the few exceptions are in quirks.py.

A gate that cannot be balanced is always reported: hash routers, which look experts up by token, are
listed as left alone; anything else raises with its name, unless the caller leaves it out by `skip`.
"""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from equipoise.attach.find.bias import Bias
from equipoise.attach.find.in_use import module_in_use
from equipoise.attach.find.probe import NotByTopKError, probe_router
from equipoise.attach.find.quirks import BIAS_NAMES, capacity_attribute, is_hash_router
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


def find_routers(model: nn.Module, skip: Sequence[str] = ()) -> FoundRouters:
    """All routers of a model, in its own order.

    Args:
        model: any module that holds MoE blocks, wrapped or not.
        skip: patterns of names ("*.vision_moe", "model.layers.0.*") to leave alone.
    """
    if isinstance(skip, str):
        skip = [skip]
    found, unused = FoundRouters([], []), set(skip)
    for path, block in model.named_modules():
        if not isinstance(getattr(block, "experts", None), nn.Module):
            continue
        name = plain_name(path)
        matching = [pattern for pattern in skip if fnmatch.fnmatch(name, pattern)]
        unused.difference_update(matching)
        if matching:
            found.left_alone.append(LeftAlone(name, "skipped on request"))
            continue
        gate_name = _find_gate(name, block)
        if gate_name is None:
            found.left_alone.append(
                LeftAlone(name, "nothing beside its experts chooses among them")
            )
        elif is_hash_router(getattr(block, gate_name)):
            found.left_alone.append(LeftAlone(name, "hash router: experts are looked up by token"))
        else:
            found.routers.append(_describe_router(model, path, block, gate_name))
    if unused:
        names = [router.name for router in found.routers] + [each.name for each in found.left_alone]
        raise ValueError(
            f"skip={sorted(unused)} matches no router: they are {', '.join(names) or 'none'}"
        )
    if not found.routers:
        left = "".join(f"\n  {name}: {reason}" for name, reason in found.left_alone)
        raise ValueError(
            f"{type(model).__name__} has no router to balance: no module with a child `experts` "
            f"and a gate beside it{left}"
        )
    return found


def plain_name(path: str) -> str:
    """A module's name without what PEFT, DDP, FSDP, Fabric and torch.compile put before it."""
    return _WRAPPERS.sub("", path)


def _find_gate(name: str, block: nn.Module) -> str | None:
    """The name of the child that chooses, or None where no child does."""
    named = [
        child_name
        for child_name, child in block.named_children()
        if child_name != "experts" and _looks_like_a_gate(child_name, child)
    ]
    exact = [child for child in named if child in ("gate", "router")]
    if len(exact) == 1:
        return exact[0]
    if len(named) > 1:
        raise ValueError(
            f"{name} has several modules that may be its router: {', '.join(named)}. Leave it "
            f"out by skip=[{name!r}], and report this family"
        )
    return named[0] if named else None


def _looks_like_a_gate(name: str, child: nn.Module) -> bool:
    words = f"{name} {type(child).__name__}".lower()
    return ("gate" in words or "router" in words) and "shared" not in name and "norm" not in name


def _describe_router(model: nn.Module, path: str, block: nn.Module, gate_name: str) -> FoundRouter:
    """Probe one router; one that cannot be balanced raises with its name and the remedy."""
    name = plain_name(path)
    try:
        spec = probe_router(block, gate_name)
    except NotByTopKError as error:
        raise ValueError(
            f"{name}.{gate_name} ({type(getattr(block, gate_name)).__name__}) cannot be "
            f"balanced: {error}. Leave it out by skip=[{name!r}]"
        ) from None
    except Exception as error:
        raise ValueError(
            f"{name}.{gate_name} ({type(getattr(block, gate_name)).__name__}) was tried "
            f"with random tokens, and how it chooses was not learnt ({type(error).__name__}: "
            f"{error}). Leave it out by skip=[{name!r}]"
        ) from error
    bias = None if spec.bias is None else _locate_bias(block, spec.bias, path)
    _check_bias(name, block, gate_name, spec)
    _check_groups(name, spec)
    gate = module_in_use(block.get_submodule(gate_name))
    experts = module_in_use(block.get_submodule("experts"))
    capacity = capacity_attribute(block, gate, experts)
    if capacity is not None:
        warnings.warn(
            f"{name} has {capacity}: if it drops choices after its top-K, where an expert is full, "
            "the dropped ones are counted all the same. Loads are what tokens asked for, not what "
            "was dispatched",
            stacklevel=4,
        )
    return FoundRouter(name, block, gate, experts, _enclosing_layer(model, path), spec, bias)


def _locate_bias(block: nn.Module, inside: str, path: str) -> Bias:
    """The bias at `inside`, a name within the block, which is at `path` in the model."""
    *parents, attribute = inside.split(".")
    owner = block.get_submodule(".".join(parents))
    return Bias(
        owner,
        attribute,
        ".".join(part for part in (plain_name(path + "."), inside) if part).replace("..", "."),
    )


def _check_bias(name: str, block: nn.Module, gate_name: str, spec: RoutingSpec) -> None:
    """A bias by its name must act as one: else the probe has misunderstood this router."""
    gate = getattr(block, gate_name)
    own = [*block.named_buffers(recurse=False), *block.named_parameters(recurse=False)]
    inner = [*gate.named_buffers(), *gate.named_parameters()]
    named = sorted({each for each, _ in own + inner if each.split(".")[-1] in BIAS_NAMES})
    if named and spec.bias is None:
        raise ValueError(
            f"{name} holds {', '.join(named)}, but its router's choice does not depend on it"
        )


def _check_groups(name: str, spec: RoutingSpec) -> None:
    """The groups a token keeps must hold top-K experts: the rest of its choice would be made among
    experts that are ruled out, by chance, and no shift could balance that.
    """
    if spec.groups is None:
        return
    size = spec.num_experts // spec.groups.number
    if spec.groups.keep * size < spec.top_k:
        raise ValueError(
            f"{name} keeps {spec.groups.keep} of {spec.groups.number} groups, of {size} experts "
            f"each, but takes top-{spec.top_k}: keep more groups in the model's config (such as "
            f"topk_group), or leave it out by skip=[{name!r}]"
        )


def _enclosing_layer(model: nn.Module, path: str) -> nn.Module:
    """The innermost numbered ancestor: `model.layers.3` of `model.layers.3.mlp`."""
    parts = path.split(".")
    numbered = [place for place, part in enumerate(parts) if part.isdigit()]
    return (
        model.get_submodule(".".join(parts[: numbered[-1] + 1]))
        if numbered
        else model.get_submodule(path)
    )


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")
