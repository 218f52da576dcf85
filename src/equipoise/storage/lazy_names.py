"""Names of a package that are loaded when first used (PEP 562).

A package whose `__init__` imports all its modules loads torch for whoever wants one small name of
it. With these two functions it does not:

    __getattr__, __dir__ = lazy_names(__name__, {"Config": "equipoise.training.config"})

Beside them stand the same imports under `if TYPE_CHECKING`, for type checkers and editors.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package.

    Args:
        package: its `__name__`.
        homes: a public name -> the module that holds it.

    Example:
        >>> find, list_names = lazy_names("equipoise.storage", {"sqrt": "math"})
        >>> find("sqrt")(4.0)
        2.0
    """

    def find_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        # the next access is an ordinary one
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find_name, list_names
