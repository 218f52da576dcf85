"""JSON: files read with errors that name the file, say what is wrong with it, and what to do; and
text for other programs, which any parser of JSON reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

JsonObject = Mapping[str, Any]
"""What a JSON file with {...} at its top holds."""


def read_json(path: Path, *, remedy: str = "") -> Any:
    """What a JSON file holds.

    Args:
        path: of the file.
        remedy: a sentence that ends the error, such as "delete it and run the command again".

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, or cut off.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error}){_ending(remedy)}") from None


def read_json_object(path: Path, *, keys: Iterable[str] = (), remedy: str = "") -> JsonObject:
    """The object {...} a JSON file holds; a list or a number at its top is refused too, and one
    that lacks any of `keys`.
    """
    content = read_json(path, remedy=remedy)
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} is damaged: it holds no JSON object, but {type(content).__name__}"
            f"{_ending(remedy)}"
        )
    if missing := [key for key in keys if key not in content]:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(missing)}{_ending(remedy)}")
    return content


def json_text(content: object) -> str:
    """What --json prints: `content` as indented JSON, with null for NaN and the infinities, which
    JSON has no words for (Python would write NaN and Infinity, and other parsers refuse them).
    """
    return json.dumps(_finite_or_null(content), indent=2, allow_nan=False)


def _finite_or_null(content: object) -> object:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {_finite_or_null(key): _finite_or_null(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite_or_null(each) for each in content]
    return content


def _ending(remedy: str) -> str:
    return f": {remedy}" if remedy else ""
