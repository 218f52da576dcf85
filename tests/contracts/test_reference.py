"""Every public name has its place in the reference, once, and static tools can find it."""

import ast
import re
from pathlib import Path

import equipoise

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/reference").glob("*.md"))


def documented():
    return [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]


def names_for_type_checkers():
    """What __init__ imports under TYPE_CHECKING: all that mkdocstrings and editors see of it."""
    tree = ast.parse(Path(equipoise.__file__).read_text())
    blocks = [each for each in tree.body if isinstance(each, ast.If)]
    imports = [each for block in blocks for each in block.body if isinstance(each, ast.ImportFrom)]
    return {alias.name for each in imports for alias in each.names}


def test_every_public_name_has_a_page():
    assert {f"equipoise.{name}" for name in equipoise.__all__} <= set(documented())


def test_no_name_stands_twice():
    assert len(documented()) == len(set(documented()))


def test_type_checkers_see_every_name():
    assert names_for_type_checkers() == set(equipoise.__all__)


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in PAGES:
        assert f"reference/{page.name}" in navigation
