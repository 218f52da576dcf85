"""YAML that people write, read with errors that name the file. Nothing is made of it but lists,
mappings, text and numbers.

An alias (*name) repeats what an anchor (&name) has, and aliases of aliases make gigabytes of a few
lines. So the size that a text would have in full is reckoned before anything is made of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equipoise.storage.optional import import_optional

MOST_NODES = 100_000
"""values in a file, each counted as often as aliases repeat it: settings have a hundred"""


def read_yaml(path: Path) -> Any:
    """What a YAML file holds; None for an empty one."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """What a YAML text holds. ValueError says what is wrong with it; `source` is its name there."""
    yaml = import_optional("yaml", extra="train")
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size_in_full(node, {}) > MOST_NODES:
            raise ValueError(
                f"{source} repeats itself by aliases to more than {MOST_NODES:,} values: write "
                "the settings out"
            )
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ValueError(
            f"{source} is nested too deeply, or holds itself by an alias: settings are flat"
        ) from None
    finally:
        loader.dispose()


def _size_in_full(node: Any, known: dict[int, int]) -> int:
    """How many values a node stands for. One that holds itself ends in a RecursionError."""
    if id(node) not in known:
        children = node.value if isinstance(node.value, list) else []
        flat = (each for child in children for each in _parts(child))
        known[id(node)] = 1 + sum(_size_in_full(each, known) for each in flat)
    return known[id(node)]


def _parts(child: Any) -> tuple[Any, ...]:
    """A mapping's node has pairs, a list's has nodes."""
    return child if isinstance(child, tuple) else (child,)
