"""Arguments that have a new name: the old one is accepted, and a FutureWarning says the new one."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")


def accept_old_argument(
    old: str, new: str
) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """A decorator: the keyword argument `old` is passed on as `new`."""

    def decorate(function: Callable[Given, Made]) -> Callable[Given, Made]:
        @functools.wraps(function)
        def accepting(*arguments: Given.args, **named: Given.kwargs) -> Made:
            if old in named:
                if new in named:
                    raise TypeError(f"{old} is now called {new}: give {new} alone")
                message = f"{function.__name__}: the argument {old} is now called {new}"
                warnings.warn(message, FutureWarning, stacklevel=2)
                named[new] = named.pop(old)
            return function(*arguments, **named)

        return accepting

    return decorate
