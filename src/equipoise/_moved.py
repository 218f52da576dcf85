"""Modules that moved: their old spelling still imports, and a FutureWarning says the new one.

    import equipoise.assignment          # FutureWarning: ... is now equipoise.optimum

The old name is the very same module, not a second copy of it, so that classes stay one. Names
inside a module that have changed are kept by the module itself (storage/renamed.py).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

_THEOREMS = ("lagrangian", "movement", "band", "gradient", "regret")
_SHIFT = ("dual", "directions", "step_sizes", "geometry", "quantile", "flips", "curvature")
_DATA = ("corpus", "texts", "tokenizer", "docstrings", "batches")

MOVED = {
    "extras": "storage.optional",
    "assignment": "optimum",
    "assignment.problem": "optimum.problem",
    "assignment.solve": "optimum.solve",
    "assignment.evaluate": "optimum.evaluate",
    "assignment.reference": "optimum.reference",
    "assignment.topk": "optimum.topk",
    "assignment.iterate": "optimum.loop",
    "assignment.files": "storage.arrays",
    "assignment.expected": "expected.dual",
    "assignment.densities": "expected.laws",
    **{f"theorems.{name}": f"theorems.statements.{name}" for name in _THEOREMS},
    **{f"balancing.{name}": f"balancing.shift.{name}" for name in _SHIFT},
    "balancing.rules": "balancing.shift.parts",
    "balancing.settling": "balancing.shift.settling",
    **{f"training.{name}": f"training.data.{name}" for name in _DATA},
    "training.distributed": "training.ranks",
    "training.files": "storage.atomic",
    "arena.catalogue": "arena.streams.catalogue",
    "arena.synthetic": "arena.streams.synthetic",
    "arena.recorded": "arena.streams.recorded",
    "arena.record": "integrations.record",
    "attach.rank_group": "routing.rank_group",
    "comparison": "results.comparison",
    "experiments.grid": "experiments.sweep.grid",
    "integrations.lightning": "attach.lightning",
    "integrations.huggingface.balancing": "attach.balance",
    "integrations.huggingface.callback": "attach.trainer",
    "integrations.huggingface.routers": "attach.find.routers",
    "integrations.huggingface.sidecar": "attach.state.sidecar",
}
"""old name -> new name, both below `equipoise`"""


class _SameModule(importlib.abc.Loader):
    """Loads the module of the new name under the old one."""

    def __init__(self, new: str) -> None:
        self._new = new
        self._own_spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._new)
        self._own_spec = module.__spec__
        package, _, name = spec.name.rpartition(".")
        parent = sys.modules[package]
        if not isinstance(vars(parent).get(name, module), ModuleType):
            parent.__class__ = _KeepsFunctions
        return module

    def exec_module(self, module: ModuleType) -> None:
        # the import system has just given the module the old name's spec
        module.__spec__ = self._own_spec


class _KeepsFunctions(ModuleType):
    """A package whose functions stay when a module of the same name is imported by its old name.

    The import system puts every imported module on its package: after `import
    equipoise.assignment.solve`, `equipoise.optimum.solve` would be that module, not the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        held = vars(self).get(name, value)
        if isinstance(held, ModuleType) or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


class _MovedFinder(importlib.abc.MetaPathFinder):
    """Stands before the path's finder, which would load a second copy below a moved package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        old = name.removeprefix("equipoise.")
        if old not in MOVED or old == name:
            return None
        new = f"equipoise.{MOVED[old]}"
        warnings.warn(f"{name} is now {new}", FutureWarning, stacklevel=2)
        return importlib.machinery.ModuleSpec(name, _SameModule(new))


def keep_old_names() -> None:
    """Let the old names be imported; once per process."""
    if not any(isinstance(finder, _MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedFinder())
