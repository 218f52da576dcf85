"""Files of settings that people write: YAML or TOML, lines of a name and a value."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from equipoise.storage.yaml_files import parse_yaml


def read_settings(path: str | Path) -> dict[str, Any]:
    """The names and values of a .toml file, or of a YAML file of any other name.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no YAML or TOML, or holds something else than names and values.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not YAML or TOML: it is no text in UTF-8 ({error})") from None
    toml = path.suffix == ".toml"
    content = _parse_toml(path, text) if toml else parse_yaml(text, str(path)) or {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"{path} must hold lines of the form 'name: value'")
    return content


def _parse_toml(path: Path, text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
