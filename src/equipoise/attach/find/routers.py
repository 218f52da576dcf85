"""Find the routers of a model by structure.

A block that routes has a child called `experts` and, beside it, one child that chooses: the gate.
What the gate does is learnt by watching it (probe.py). There is no list of families: a new one is
found if it has this structure, and the few exceptions are in quirks.py.

Where the block itself chooses, and where the caller names routers, own_routers.py finds them.

A gate that cannot be balanced is always reported: hash routers, which look experts up by token, are
listed as left alone; anything else raises with its name, unless the caller leaves it out by `skip`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import torch
from torch import nn

from equipoise.attach.find.bias import Bias
from equipoise.attach.find.choosing_code import chooses_in_code
from equipoise.attach.find.found_router import (
    FoundRouter,
    FoundRouters,
    LeftAlone,
    enclosing_layer,
    plain_name,
    warn_of_capacity,
)
from equipoise.attach.find.in_use import module_in_use
from equipoise.attach.find.kernels import check_block_kernel
from equipoise.attach.find.own_routers import (
    RouterName,
    describe_choosing,
    find_choosing,
    find_named,
)
from equipoise.attach.find.probe import NotByTopKError, OneLevelUpError, probe_router
from equipoise.attach.find.quirks import BIAS_NAMES, is_hash_router
from equipoise.attach.find.remedy import TEN_LINES
from equipoise.attach.find.routing_spec import RoutingSpec
from equipoise.attach.find.zero_parts import in_parts, take_whole


def find_routers(
    model: nn.Module,
    skip: Sequence[str] = (),
    routers: RouterName | Sequence[RouterName] | None = None,
) -> FoundRouters:
    """All routers of a model, in its own order.

    Args:
        model: any module that holds MoE blocks, wrapped or not.
        skip: patterns of names ("*.vision_moe", "model.layers.0.*") to leave alone.
        routers: names, patterns of names, classes or modules that choose experts in their own
            forward; then nothing else is looked for.
    """
    if routers is not None:
        if skip:
            raise ValueError("give routers=, the names of all to balance, or skip=, not both")
        return find_named(model, routers)
    if isinstance(skip, str):
        skip = [skip]
    found, unused = _find_blocks(model, skip)
    if not found.routers and not found.left_alone:
        found = find_choosing(model, skip)
        unused = set(skip) - set(_met_patterns(skip, [name for name, _ in found.left_alone]))
    if unused:
        names = [router.name for router in found.routers] + [each.name for each in found.left_alone]
        raise ValueError(
            f"skip={sorted(unused)} matches no router: they are {', '.join(names) or 'none'}"
        )
    if not found.routers:
        left = "".join(f"\n  {name}: {reason}" for name, reason in found.left_alone)
        raise ValueError(
            f"{type(model).__name__} has no router to balance: no module with a child `experts` "
            f"and a gate beside it, and none that calls topk over experts{left}\n{TEN_LINES}"
        )
    return found


def _met_patterns(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    return [each for each in patterns if fnmatch.filter(names, each)]


def _find_blocks(model: nn.Module, skip: Sequence[str]) -> tuple[FoundRouters, set[str]]:
    """The routers that are found by structure, and the patterns of `skip` that met none."""
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
        described = _describe_block(model, path, block)
        if isinstance(described, FoundRouter):
            found.routers.append(described)
        else:
            found.left_alone.append(LeftAlone(name, described))
    return found, unused


def _describe_block(model: nn.Module, path: str, block: nn.Module) -> FoundRouter | str:
    """The router of a block that has experts, or why it has none."""
    gates = _possible_gates(block)
    if len(gates) != 1 and chooses_in_code(block):
        return describe_choosing(model, path, block)
    if len(gates) > 1:
        name = plain_name(path)
        raise ValueError(
            f"{name} has several modules that may be its router: {', '.join(gates)}. Leave it "
            f"out by skip=[{name!r}], and report this family"
        )
    if not gates:
        return "nothing beside its experts chooses among them"
    if is_hash_router(getattr(block, gates[0])):
        return "hash router: experts are looked up by token"
    return _describe_router(model, path, block, gates[0])


def _possible_gates(block: nn.Module) -> list[str]:
    """The names of the children that may choose: one, where one is called as most are."""
    named = [
        child_name
        for child_name, child in block.named_children()
        if child_name != "experts" and _looks_like_a_gate(child_name, child)
    ]
    exact = [child for child in named if child in ("gate", "router")]
    return exact if len(exact) == 1 else named


def _looks_like_a_gate(name: str, child: nn.Module) -> bool:
    words = f"{name} {type(child).__name__}".lower()
    return ("gate" in words or "router" in words) and "shared" not in name and "norm" not in name


def _describe_router(model: nn.Module, path: str, block: nn.Module, gate_name: str) -> FoundRouter:
    """Probe one router; one that cannot be balanced raises with its name and the remedy."""
    name = plain_name(path)
    check_block_kernel(name, block)
    for inner, value in [*block.named_parameters()]:
        *parents, attribute = inner.split(".")
        if attribute in BIAS_NAMES and in_parts(value):
            # before the probe: a module around the bias may not run without its parts
            take_whole(block.get_submodule(".".join(parents)), attribute, f"{name}.{inner}")
    try:
        spec = probe_router(block, gate_name)
    except OneLevelUpError:
        return describe_choosing(model, path, block)
    except NotByTopKError as error:
        raise ValueError(
            f"{name}.{gate_name} ({type(getattr(block, gate_name)).__name__}) cannot be "
            f"balanced: {error}. Leave it out by skip=[{name!r}]. {TEN_LINES}"
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
    warn_of_capacity(name, block, gate, experts)
    return FoundRouter(name, block, gate, experts, enclosing_layer(model, path), spec, bias)


def _locate_bias(block: nn.Module, inside: str, path: str) -> Bias:
    """The bias at `inside`, a name within the block, which is at `path` in the model."""
    *parents, attribute = inside.split(".")
    owner = block.get_submodule(".".join(parents))
    return Bias(owner, attribute, plain_name(f"{path}.{inside}" if path else inside))


def _check_bias(name: str, block: nn.Module, gate_name: str, spec: RoutingSpec) -> None:
    """A bias by its name must act as one: else the probe has misunderstood this router."""
    gate = getattr(block, gate_name)
    own = [*block.named_buffers(recurse=False), *block.named_parameters(recurse=False)]
    inner = [*gate.named_buffers(), *gate.named_parameters()]
    named = sorted({each for each, _ in own + inner if each.split(".")[-1] in BIAS_NAMES})
    if named and spec.bias is None:
        raise ValueError(
            f"{name} holds {', '.join(named)}, but it is no correction bias: its router's choice "
            "does not depend on it, or the gate weights do too (NeMo Automodel's "
            "router_weight_uses_score_correction_bias). Leave it out by "
            f"skip=[{name!r}]"
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


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")
