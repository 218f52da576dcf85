"""Packages only some users need: imported where used, with an error that names the extra."""

from __future__ import annotations

import importlib
from types import ModuleType


def import_optional(module: str, extra: str) -> ModuleType:
    """Import `module`, or say which extra of equipoise brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise  # the package is there and something inside it is broken: show that
        raise ModuleNotFoundError(missing_module(error, extra), name=error.name) from None


def missing_module(error: ModuleNotFoundError, extra: str) -> str:
    """What to say of a missing module: what to install, where the error does not say so itself.

    Plain imports, such as torch's, do not: only `import_optional` does.
    """
    if error.name is None or "pip install" in str(error) or error.name.startswith("equipoise"):
        return str(error)
    name = error.name.split(".")[0]
    return f"this needs {name!r}, which is not installed: pip install 'equipoise[{extra}]'"
