"""A copy of the package that holds one mutant at a time, and numba's cache for it.

numba keeps compiled kernels by a file's time and size, and does not see that a kernel of another
file changed. Here the stamp of a file is constant, so that changes elsewhere compile nothing anew,
and a mutant that changes what is compiled gets a cache of its own: without the kernels of its file
and of all files that import it.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.mutation.mutants import Mutant

_IMPORT = re.compile(r"^\s*(?:from|import)\s+(equipoise[\w.]*)(?:\s+import\s+([^\n(]+))?", re.M)


class SourceCopy:
    """The package's sources in a folder of their own.

    Args:
        package: The package's folder in the work tree, which is only read.
        folder: Where the copy and the cache of a mutant go.
        warm_cache: Where the kernels without a mutant are kept: for this text of the package only.
    """

    def __init__(self, package: Path, folder: Path, warm_cache: Path) -> None:
        self.sources = folder / "src"
        self.package = self.sources / package.name
        self.warm_cache = warm_cache
        self._own_cache = folder / "numba-of-mutant"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, self.package, ignore=ignored)
        compileall.compile_dir(self.package, quiet=1)
        self.warm_cache.mkdir(parents=True, exist_ok=True)
        self._importers = importers_in(self.package)

    @contextlib.contextmanager
    def holding(self, mutant: Mutant) -> Iterator[Path]:
        """The copy with a mutant in it, then as before; gives the folder of numba's cache."""
        path = self.package / mutant.path
        text = path.read_text(encoding="utf-8")
        bytecode = Path(importlib.util.cache_from_source(str(path)))
        kept = bytecode.read_bytes()
        times = path.stat()
        path.write_text(mutant.apply(text), encoding="utf-8")
        bytecode.unlink()
        try:
            yield self._cache_for(mutant)
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            bytecode.write_bytes(kept)

    def _cache_for(self, mutant: Mutant) -> Path:
        if mutant.function and not mutant.compiled:
            return self.warm_cache
        shutil.rmtree(self._own_cache, ignore_errors=True)
        shutil.copytree(self.warm_cache, self._own_cache)
        for stale in changed_with(mutant.path, self._importers):
            folder, stem = Path(stale).parent.name, Path(stale).stem
            for kept in self._own_cache.glob(f"{folder or self.package.name}_*/{stem}.*"):
                kept.unlink()
        return self._own_cache


def changed_with(path: str, importers: dict[str, set[str]]) -> set[str]:
    """The file and all that import it, directly or not."""
    found, new = set[str](), {path}
    while new:
        found |= new
        new = {each for known in new for each in importers.get(known, ())} - found
    return found


def use_cache(folder: Path) -> None:
    """Let numba, in this process, keep kernels in a folder, whatever a file's place and time."""
    import numba
    from numba.core import caching

    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    caching._SourceFileBackedLocatorMixin.get_source_stamp = lambda self: (0.0, 0)
    caching._CacheLocator.get_suitable_cache_subpath = classmethod(
        lambda cls, path: f"{Path(path).parent.name}_"
    )


def importers_in(package: Path) -> dict[str, set[str]]:
    """For each file the files that import it."""
    importers: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        for module, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
            spellings = [module, *(f"{module}.{name.strip()}" for name in names.split(","))]
            for spelling in spellings:
                found = package.joinpath(*spelling.split(".")[1:]).with_suffix(".py")
                if found.is_file() and spelling != "equipoise":
                    key = str(found.relative_to(package))
                    importers.setdefault(key, set()).add(str(path.relative_to(package)))
    return importers
