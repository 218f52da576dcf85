"""A corpus that is already on the disk: the docstrings of the standard library and of the libraries
that equipoise needs.

Some megabytes of technical English that anybody who can run this has, and the same for everybody
with the same versions. Sources are parsed and never imported. Equal docstrings (inherited ones,
generated variants) are kept once.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import platform
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

# torch brings sympy and networkx; the rest are equipoise's own. Whatever else is installed stays
# out: it would make the corpus another one on every machine.
LIBRARIES = ("torch", "numpy", "scipy", "sympy", "networkx", "numba")
SKIPPED_FOLDERS = {
    "test",
    "tests",
    "site-packages",
    "idlelib",
    "lib2to3",
    "__pycache__",
    "_vendor",
    "_inductor",
    "caffe2",
}
MIN_CHARACTERS = 80
"""Shorter docstrings say nothing, such as "Return self"."""


def library_versions() -> dict[str, str]:
    """Of everything that is read: the same versions give the same documents."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def documents() -> Iterator[tuple[str, list[str]]]:
    """(name of the file, its docstrings that were in no file before), in the order of names."""
    seen: set[str] = set()
    for library in ("python", *LIBRARIES):
        for path, root in _source_files(library):
            new = [text for text in dict.fromkeys(_docstrings_in(path)) if text not in seen]
            seen.update(new)
            if new:
                yield f"{library}/{path.relative_to(root).as_posix()}", new


def _source_files(library: str) -> Iterator[tuple[Path, Path]]:
    """(file, the folder its name is relative to)"""
    for root in _library_folders(library):
        files = (
            path
            for path in root.rglob("*.py")
            if not SKIPPED_FOLDERS & set(path.relative_to(root).parts)
        )
        yield from ((path, root) for path in sorted(files))


def _library_folders(library: str) -> list[Path]:
    if library == "python":
        return [Path(sysconfig.get_path("stdlib"))]
    spec = importlib.util.find_spec(library)
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def _docstrings_in(path: Path) -> Iterator[str]:
    """Those worth reading, of the module, its classes and functions, and those handed to functions
    that attach them.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):
        return
    if '"""' not in source and "'''" not in source:
        return
    try:
        with warnings.catch_warnings():
            # about escape sequences in code that is not ours
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError:
        return  # templates, and files for other versions of Python
    for node in (tree, *_statements_in(tree)):
        text = _docstring_of(node)
        if text is not None and len(text) >= MIN_CHARACTERS:
            yield text


def _statements_in(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements inside a node. Most nodes of a tree are expressions: leaving them out halves
    the time.
    """
    for field in ("body", "orelse", "handlers", "finalbody"):
        for inner in getattr(node, field, ()):
            if isinstance(inner, ast.stmt):
                yield inner
            yield from _statements_in(inner)


def _docstring_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return ast.get_docstring(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        if getattr(call.func, "id", "") in ("add_docstr", "add_newdoc"):
            texts = [
                each.value
                for each in call.args
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
            return inspect.cleandoc(max(texts, key=len)) if texts else None
    return None
