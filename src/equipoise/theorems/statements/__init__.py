"""The paper's statements, a file for each group. Importing this package registers all of them."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from equipoise.theorems.registry import Statement, registered_statements

__all__ = ["all_statements"]

# every file of this folder, so that a new one needs no entry in a list
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def all_statements() -> tuple[Statement[Any, Any], ...]:
    """Every statement, by number."""
    return registered_statements()
