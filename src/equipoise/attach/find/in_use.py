"""Which modules of a block are in use: wrappers that come later may put copies in their place.

PEFT's `modules_to_save` keeps a module as it was and lets the model run a copy of it, one for each
adapter. A hook on the module that was left aside sees nothing, and a bias written there is used by
nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from equipoise.attach.find.bias import Bias


def module_in_use(module: nn.Module) -> nn.Module:
    """The copy that PEFT runs in place of a module; the module itself where there is none."""
    wrapper: Any = module
    copies = _adapter_copies(module)
    if copies is None:
        return module
    active = [name for name in wrapper.active_adapters if name in copies]
    return copies[active[0]] if active else wrapper.original_module


def replaced_parts(
    block: nn.Module, gate: nn.Module, experts: nn.Module, bias: Bias | None
) -> list[str]:
    """What of a router its block does not run any more: its gate, its experts or its bias."""
    parts = {"gate": gate, "experts": experts}
    if bias is not None:
        parts["bias"] = bias.owner
    missing = {id(module) for module in parts.values()}
    for module in _modules_in_use(block):
        missing.discard(id(module))
        if not missing:
            return []
    return [name for name, module in parts.items() if id(module) in missing]


def _modules_in_use(block: nn.Module) -> Iterator[nn.Module]:
    """The block and all it may run, the nearest first: a router's parts come before its experts."""
    level = [block]
    while level:
        yield from level
        level = [child for module in level for child in _children_in_use(module)]


def _children_in_use(module: nn.Module) -> list[nn.Module]:
    if _adapter_copies(module) is not None:
        return [module_in_use(module)]
    return list(module.children())


def _adapter_copies(module: nn.Module) -> nn.ModuleDict | None:
    """The copies by adapter, where the module is PEFT's wrapper of one that is saved whole."""
    copies = module._modules.get("modules_to_save")
    if isinstance(copies, nn.ModuleDict) and "original_module" in module._modules:
        return copies
    return None
