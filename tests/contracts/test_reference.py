"""Every public name has its place in the reference, once, and static tools can find it."""

import ast
import doctest
import functools
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
import torch

import equipoise

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/reference").glob("*.md"))


def documented():
    return [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]


def imports_for_type_checkers():
    """(module, name) that __init__ imports under TYPE_CHECKING: all that mkdocstrings and editors
    see of it.
    """
    tree = ast.parse(Path(equipoise.__file__).read_text())
    blocks = [each for each in tree.body if isinstance(each, ast.If)]
    imports = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)]
    return [(each.module, alias.name) for each in imports for alias in each.names]


def test_every_public_name_has_a_page():
    assert {f"equipoise.{name}" for name in equipoise.__all__} <= set(documented())


def test_no_name_stands_twice():
    assert len(documented()) == len(set(documented()))


def test_type_checkers_see_every_name():
    names = [name for _, name in imports_for_type_checkers()]
    assert sorted(names) == sorted(equipoise.__all__)


def test_no_name_is_taken_for_a_module():
    """`from equipoise.routing import route` is, statically, the file route.py: then its page
    shows the file's docstring, and not the function.
    """
    homes = {module: importlib.util.find_spec(module) for module, _ in imports_for_type_checkers()}
    for module, name in imports_for_type_checkers():
        for folder in homes[module].submodule_search_locations or ():
            assert not (Path(folder) / f"{name}.py").exists(), f"{name}: import it from {name}.py"


@pytest.mark.parametrize("name", equipoise.__all__)
def test_every_name_has_an_example(name):
    """tests/end_to_end/test_docstrings.py runs it, but for those that train or serve."""
    assert ">>> " in inspect.getdoc(getattr(equipoise, name))


@pytest.mark.parametrize("name", equipoise.__all__)
def test_every_argument_is_described(name):
    thing = getattr(equipoise, name)
    if inspect.isclass(thing) and not issubclass(thing, torch.nn.Module):
        return  # its fields and methods stand on its page, each with a docstring of its own
    docstring = inspect.getdoc(thing)
    described = docstring.partition("Args:")[2].partition("\n\n")[0]
    for parameter in inspect.signature(thing).parameters:
        assert re.search(rf"\b{parameter}\b", described), f"{name} does not describe {parameter}"


def unrun_calls():
    """equipoise.NAME(...) of the examples that are not run."""
    for name in equipoise.__all__:
        for example in doctest.DocTestParser().get_examples(
            inspect.getdoc(getattr(equipoise, name))
        ):
            for node in ast.walk(ast.parse(example.source)):
                called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if example.options.get(doctest.SKIP) and called.startswith("equipoise."):
                    yield pytest.param(called.split(".")[1:], node, id=called)


@pytest.mark.parametrize(("called", "node"), list(unrun_calls()))
def test_examples_that_are_not_run_could_be(called, node):
    function = functools.reduce(getattr, called, equipoise)
    keywords = {each.arg: None for each in node.keywords if each.arg is not None}
    inspect.signature(function).bind(*node.args, **keywords)
