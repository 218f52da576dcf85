"""Which modules choose experts in their own code: read, not run.

A module's forward, the methods it calls and the functions of its package that it calls are searched
for the name of a choice. Submodules are not followed: they are searched themselves, so that a gate
is found and not the block around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

_CHOICES = ("topk", "argmax")
_DEPTH = 4


def chooses_in_code(module: nn.Module) -> bool:
    """Whether a module's own code calls topk or argmax."""
    forward: Any = type(module).forward
    return any(name in _CHOICES for name in _names_reached(forward, type(module), _DEPTH))


def _names_reached(function: object, owner: type, depth: int) -> Iterator[str]:
    """All names that a function uses, and those of what it calls."""
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, FunctionType):
        return
    for name in _code_names(function.__code__):
        yield name
        # in every class, since super() may be meant
        called = [vars(each)[name] for each in owner.__mro__ if name in vars(each)]
        for each in called or [function.__globals__.get(name)]:
            # never into torch itself
            own = not str(getattr(each, "__module__", "torch")).startswith("torch.")
            if depth and own and each is not function:
                yield from _names_reached(each, owner, depth - 1)


def _code_names(code: CodeType) -> Iterator[str]:
    """Of a function and of the lambdas and comprehensions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_names(constant)
