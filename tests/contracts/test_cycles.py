"""No module needs itself through others, and no two folders need each other. Lazy imports count."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "equipoise"
ENTRANCES = ("equipoise", "equipoise.__main__")


def module_name(path):
    parts = ("equipoise", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def under_type_checking(tree):
    """Imports that only a type checker sees: they never run."""
    blocks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {id(inner) for block in blocks for inner in ast.walk(block)}


def imports_of(text, known):
    """Our modules that a module imports, anywhere in its text, as the import system finds them."""
    tree = ast.parse(text)
    unseen = under_type_checking(tree)
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("equipoise"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module


def graph():
    texts = {module_name(path): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    return {
        name: set(imports_of(text, texts)) - {name}
        for name, text in texts.items()
        if name not in ENTRANCES
    }


def cycle_in(edges):
    """A path from a node back to itself, or nothing (depth-first search)."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done or node not in edges:
            return None
        path.append(node)
        found = next(filter(None, map(visit, sorted(edges[node]))), None)
        path.pop()
        done.add(node)
        return found

    return next(filter(None, map(visit, sorted(edges))), None)


def folders(edges, depth):
    """The same graph between folders."""

    def folder(name):
        return ".".join(name.split(".")[: depth + 1])

    found = {}
    for name, needs in edges.items():
        found.setdefault(folder(name), set()).update(map(folder, needs))
    return {name: needs - {name} for name, needs in found.items()}


def test_no_module_needs_itself():
    assert cycle_in(graph()) is None


def test_no_room_needs_itself_through_others():
    assert cycle_in(folders(graph(), 1)) is None


@pytest.mark.parametrize(
    ("edges", "cyclic"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, True),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, False),
        ({"a": {"b"}, "b": {"b2"}, "b2": {"b"}}, True),
    ],
)
def test_cycles_are_found(edges, cyclic):
    assert (cycle_in(edges) is not None) == cyclic


def test_lazy_imports_count_and_those_of_type_checkers_do_not():
    known = {"equipoise.routing", "equipoise.trace"}
    lazy = "def f():\n    from equipoise.routing import route\n"
    typed = "if TYPE_CHECKING:\n    from equipoise.trace import Trace\n"
    assert set(imports_of(lazy + typed, known)) == {"equipoise.routing"}
