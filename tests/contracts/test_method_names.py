"""A method's properties stand in its spec: no other file may list methods by name.

A list, tuple, set or dict with two method names in it is such a list: it says something of some
methods that a new method's author would have to know of.
"""

import ast
from pathlib import Path

import pytest

import equipoise

PACKAGE = Path(__file__).parents[2] / "src" / "equipoise"
LEGITIMATE = {
    # what the paper observed of its four schemes, by the names that they have in its experiment
    # (experiments/schemes.py)
    "observations.py",
    # modules that bore a method's name
    "_moved.py",
    # old names of the paper's step sizes on numpy arrays, which are no balancers
    "optimum/loop.py",
    # how schemes look; one that is not listed has a look that follows from its name
    "results/scheme_style.py",
    # the rules whose steps have a theory: each is a formula there
    "arena/advice/prediction.py",
}
# words that are more than the name of a method: "none" is Python's, "base" a section of a grid
AMBIGUOUS = {"none", "base"}


def named_methods(node):
    """The method names that stand in a literal itself, not in what it contains."""
    elements = node.keys if isinstance(node, ast.Dict) else node.elts
    return {
        each.value
        for each in elements
        if isinstance(each, ast.Constant)
        and isinstance(each.value, str)
        and each.value in equipoise.balancers()
    }


def lists_of_methods(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            names = named_methods(node)
            if len(names) > 1 and names - AMBIGUOUS:
                yield f"line {node.lineno}: {', '.join(sorted(names))}"


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if not str(path).endswith(tuple(LEGITIMATE))],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_no_file_lists_methods(path):
    assert list(lists_of_methods(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        'WEIGHED = ("aux", "z_loss")',
        'RATES = {"deepseek": 1, "quantile": 2}',
        'if name in ["none", "curvature"]: pass',
        'chosen = {"base", "bip"}',
    ],
)
def test_lists_are_seen(line):
    assert list(lists_of_methods(line)) != []


def test_exceptions_are_still_needed():
    for name in LEGITIMATE:
        texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob(name)]
        assert any(list(lists_of_methods(text)) for text in texts)
