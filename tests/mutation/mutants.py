"""Every mutant of a module: where it is, what it changes, and the module's text with the change.

Left alone is what no test should hold: docstrings, annotations and type aliases, the words of
errors and warnings, `__repr__` and its like, `if TYPE_CHECKING`, what only compilers and
dataclasses read (decorators such as njit), and `__all__`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.mutation.operators import changes_of

_COMPILED = re.compile(r"njit|_kernel$|intrinsic|vectorize")
_SPEECH = re.compile(r"Error$|Warning$|^warn$|^warn_|^print$|^getLogger$|^field$|^cast$|^TypeVar$")
_DESCRIBING = {"__repr__", "__str__", "extra_repr"}


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Args:
        path: The module, from the package's folder.
        line: Where the change begins.
        kind: The operator that made it.
        function: The function that holds it, by its qualified name; "" outside functions.
        compiled: Whether it changes what numba compiles.
        span: Where the old text begins and ends, in characters of the module.
        old: The old text.
        new: The new one.
    """

    path: str
    line: int
    kind: str
    function: str
    compiled: bool
    span: tuple[int, int]
    old: str
    new: str

    @property
    def key(self) -> str:
        """A name that stays the same as long as the module does."""
        return f"{self.path}:{self.line}:{self.span[0]}:{self.kind}:{self.new}"

    def apply(self, text: str) -> str:
        """The module's text with the change."""
        start, stop = self.span
        return text[:start] + self.new + text[stop:]


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Every change of a module, whether or not the result compiles: see `is_another_program`."""
    places = _Places(text)
    found = []
    for node, function, compiled in _Walk("numba" in text).within(ast.parse(text)):
        for kind, place, new in changes_of(node):
            start, stop = places.span(place)
            line: int = place.lineno  # type: ignore[attr-defined]
            found.append(
                Mutant(path, line, kind, function, compiled, (start, stop), text[start:stop], new)
            )
    return found


def is_another_program(mutant: Mutant, text: str) -> bool:
    """Whether a change of this text compiles, and to something else."""
    changed = mutant.apply(text)
    try:
        compile(changed, mutant.path, "exec")
    except SyntaxError:
        return False
    return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


class _Places:
    """From ast's lines and bytes to characters of the text."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node's text begins and ends."""
        start = self._at(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return start, self._at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _at(self, line: int, offset: int) -> int:
        before = self._lines[line - 1].encode()[:offset].decode()
        return self._starts[line - 1] + len(before)


class _Walk:
    """The nodes that may change, each with its function and whether numba compiles it."""

    def __init__(self, has_kernels: bool) -> None:
        self._has_kernels = has_kernels

    def within(
        self, node: ast.AST, names: tuple[str, ...] = (), function: str = "", compiled: bool = False
    ) -> Iterator[tuple[ast.AST, str, bool]]:
        for child in _parts_that_may_change(node):
            if _is_left_alone(child, function):
                continue
            inner = (names, function, compiled)
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                own = (*names, child.name)
                jitted = compiled or any(_COMPILED.search(_name(d)) for d in child.decorator_list)
                inner = ((*own, "<locals>"), ".".join(own), jitted)
            elif isinstance(child, ast.ClassDef):
                inner = ((*names, child.name), function, compiled)
            yield child, function, compiled or (self._has_kernels and not function)
            yield from self.within(child, *inner)


def _parts_that_may_change(node: ast.AST) -> Iterator[ast.AST]:
    """A node's children, without annotations and what only compilers and dataclasses read."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params"):
            continue
        children = value if isinstance(value, list) else [value]
        for child in children:
            unread = name == "decorator_list" and not _says_something(child)
            if isinstance(child, ast.AST) and not unread:
                yield child


def _says_something(decorator: ast.expr) -> bool:
    """Only this package's own decorators say what a test can see."""
    return _name(decorator) in ("method", "statement")


def _is_left_alone(node: ast.AST, function: str) -> bool:
    if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if isinstance(node, (ast.FunctionDef, ast.Call)) and _is_speech(node):
        return True
    return not function and isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_alias(node)


def _is_speech(node: ast.FunctionDef | ast.Call) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name in _DESCRIBING
    return bool(_SPEECH.search(_name(node)))


def _is_alias(node: ast.Assign | ast.AnnAssign) -> bool:
    """A type by another name, `__all__`, or a compiler's settings."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    value = node.value
    if _name(target) == "__all__" or value is None:
        return True
    if isinstance(value, ast.Call):
        return bool(_COMPILED.search(_name(value)))
    return isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)) or (
        isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
    )


def _name(node: ast.AST) -> str:
    """The last word of what is named or called."""
    while isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
