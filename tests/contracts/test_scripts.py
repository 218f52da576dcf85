"""What benchmarks and examples import from the package is there, under its present name."""

import ast
import importlib
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py"), *ROOT.glob("docs/_site/*.py")]
)


def imported_names(text):
    """(module, name) of every `from equipoise... import name`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "equipoise":
            yield from ((node.module, alias.name) for alias in node.names)


def missing_names(text):
    for module, name in imported_names(text):
        home = importlib.import_module(module)
        if name in getattr(home, "__all__", ()):
            continue  # loaded when used, perhaps with a package that only slow tests fetch
        if not hasattr(home, name):
            try:
                importlib.import_module(f"{module}.{name}")
            except ModuleNotFoundError:
                yield f"{module}.{name}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_imported_names_exist(path):
    with warnings.catch_warnings():
        # an old spelling works, and says the new one: ours is to be the new one
        warnings.simplefilter("error", FutureWarning)
        assert list(missing_names(path.read_text())) == []


def test_missing_names_are_seen():
    text = "from equipoise.arena.streams.stream import Stream, catalogue"
    assert list(missing_names(text)) == ["equipoise.arena.streams.stream.catalogue"]
