"""Arguments and names that changed: the old one works, and a FutureWarning says the new one."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

ArgumentTypes = ParamSpec("ArgumentTypes")
ReturnType = TypeVar("ReturnType")


def accept_old_argument(
    old: str, new: str
) -> Callable[[Callable[ArgumentTypes, ReturnType]], Callable[ArgumentTypes, ReturnType]]:
    """A decorator: the keyword argument `old` is passed on as `new`."""

    def decorate(
        function: Callable[ArgumentTypes, ReturnType],
    ) -> Callable[ArgumentTypes, ReturnType]:
        @functools.wraps(function)
        def accepting(*arguments: ArgumentTypes.args, **named: ArgumentTypes.kwargs) -> ReturnType:
            if old in named:
                if new in named:
                    raise TypeError(f"{old} is now called {new}: give {new} alone")
                message = f"{function.__name__}: the argument {old} is now called {new}"
                warnings.warn(message, FutureWarning, stacklevel=2)
                named[new] = named.pop(old)
            return function(*arguments, **named)

        return accepting

    return decorate


def old_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module whose names changed.

    Args:
        module: its `__name__`.
        renamed: old name -> new name, with the module before it if it moved there too:
            "equipoise.other.module:new_name".

    Example:
        >>> __getattr__ = old_names("math", {"circle_constant": "pi"})
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     round(__getattr__("circle_constant"), 2)
        3.14
    """

    def get_renamed(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new = renamed[name].rpartition(":")
        home = home or module
        message = f"{module}.{name} is now {home}.{new}"
        warnings.warn(message, FutureWarning, stacklevel=2)
        return getattr(importlib.import_module(home), new)

    return get_renamed
