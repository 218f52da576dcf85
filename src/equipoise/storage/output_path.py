"""output_path: where a user asked results to be written."""

from __future__ import annotations

from pathlib import Path


def output_path(path: str | Path) -> Path:
    """The path with a leading ~ as the home folder, which no shell expands in --out='~/runs/a', in
    a YAML file or in Python. An empty one is refused: it would be the current folder.
    """
    if not str(path).strip():
        raise ValueError("the name of the folder to write to is empty: name one")
    return Path(path).expanduser()
