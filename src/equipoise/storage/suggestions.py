"""Suggestions: an unknown name is answered with the known names that are spelled almost like it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The part of an error message that follows an unknown name: " (did you mean 'a' or 'b'?)".

    Empty where no known name is near, so that a message can always hold it:

        raise ValueError(f"no preset {name!r}{did_you_mean(name, PRESETS)}: there are ...")
    """
    near = difflib.get_close_matches(word, list(known), n=2)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
