"""Routers of layers that people write themselves: modules that choose in their own forward.

Named ones are taken as they are named: by their name in the model, a pattern of names, their class,
or themselves. Without names, those are taken that call topk or argmax in their own code
(choosing_code.py) and are then seen to choose experts by it (probe_choice.py).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from torch import nn

from equipoise.attach.find.choosing_code import chooses_in_code
from equipoise.attach.find.found_router import (
    FoundRouter,
    FoundRouters,
    LeftAlone,
    enclosing_layer,
    plain_name,
    warn_of_capacity,
)
from equipoise.attach.find.probe import NotByTopKError
from equipoise.attach.find.probe_choice import probe_choice
from equipoise.attach.find.remedy import TEN_LINES

RouterName = str | type[nn.Module] | nn.Module


def describe_choosing(model: nn.Module, path: str, module: nn.Module) -> FoundRouter:
    """A module that chooses in its own forward; refused with its name and the remedy."""
    name = plain_name(path)
    try:
        spec = probe_choice(module)
    except NotByTopKError as error:
        raise ValueError(
            f"{name or 'the model'} ({type(module).__name__}) cannot be balanced: {error}. Leave "
            f"it out by skip=[{name!r}], or by other names in routers=. {TEN_LINES}"
        ) from None
    experts = getattr(module, "experts", None)
    if not isinstance(experts, nn.Module):
        experts = module
    warn_of_capacity(name, module, experts)
    return FoundRouter(name, module, module, experts, enclosing_layer(model, path), spec, None)


def find_named(model: nn.Module, routers: RouterName | Sequence[RouterName]) -> FoundRouters:
    """The routers that a caller names. Each name must meet a module, and each module choose."""
    named = list(routers) if isinstance(routers, list | tuple) else [routers]
    met = dict.fromkeys(range(len(named)), False)
    found = FoundRouters([], [])
    for path, module in model.named_modules():
        matching = [place for place, each in enumerate(named) if _is_meant(each, path, module)]
        met.update(dict.fromkeys(matching, True))
        if matching:
            found.routers.append(describe_choosing(model, path, module))
    missing = [named[place] for place, has_met in met.items() if not has_met]
    if missing:
        possible = [plain_name(path) for path, _ in _choosing_modules(model)]
        raise ValueError(
            f"routers={missing} matches no module of {type(model).__name__}. Those that call topk "
            f"in their own forward are: {', '.join(possible) or 'none'}"
        )
    return found


def _is_meant(name: object, path: str, module: nn.Module) -> bool:
    if isinstance(name, str):
        return fnmatch.fnmatch(plain_name(path), name)
    if isinstance(name, type):
        return isinstance(module, name)
    if isinstance(name, nn.Module):
        return module is name
    raise TypeError(f"routers= takes names, patterns of names, classes and modules, not {name!r}")


def find_choosing(model: nn.Module, skip: Sequence[str]) -> FoundRouters:
    """Modules that choose in their own code, the innermost of those inside each other."""
    found = FoundRouters([], [])
    for path, module in _choosing_modules(model):
        name = plain_name(path)
        if any(fnmatch.fnmatch(name, pattern) for pattern in skip):
            found.left_alone.append(LeftAlone(name, "skipped on request"))
            continue
        inside = set(module.modules())
        if any(router.block in inside for router in found.routers):
            continue
        try:
            found.routers.append(describe_choosing(model, path, module))
        except ValueError as error:
            reason = str(error).split(TEN_LINES)[0].split(" cannot be balanced: ")[-1]
            found.left_alone.append(LeftAlone(name, reason.split(". Leave it out")[0]))
    found.routers.reverse()
    return found


def _choosing_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The innermost and last first."""
    named = [(path, module) for path, module in model.named_modules() if chooses_in_code(module)]
    return reversed(named)
