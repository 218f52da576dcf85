"""`import torch.x` in a function makes `torch` a name of that function, unbound on every path that
does not run the import: an UnboundLocalError that shows only where that path is taken.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for part in ("src", "tests", "examples") for path in (ROOT / part).rglob("*.py")
)


def shadowing_imports(tree):
    """Lines of functions' imports of a submodule whose package the file imports at its top."""
    above = {
        alias.asname or alias.name.split(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sorted(
        {
            node.lineno
            for function in functions
            for node in ast.walk(function)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.asname is None and "." in alias.name and alias.name.split(".")[0] in above
        }
    )


def test_no_import_in_a_function_shadows_a_package():
    found = {
        str(path.relative_to(ROOT)): lines
        for path in FILES
        if (lines := shadowing_imports(ast.parse(path.read_text())))
    }
    assert not found


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("import a\ndef f():\n    import a.b\n", [3]),
        ("import a\ndef f():\n    import a.b as b\n", []),
        ("def f():\n    import a.b\n", []),
    ],
)
def test_the_check_can_fail(code, lines):
    assert shadowing_imports(ast.parse(code)) == lines
