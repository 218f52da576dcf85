"""Settings of two configs side by side: what differs, and the error when that matters.

A folder that was written with one config must not be continued, measured or overwritten with
another one. A training that resumes, a comparison and a sweep all ask this question; here is the
only answer to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

FlatSettings = dict[str, Any]
"""{"steps": 300, "model.top_k": 2}: settings by name, those of the model behind a dot"""
MAY_CHANGE = {
    "out", "resume", "checkpoint_every", "keep_checkpoints", "rank_timeout", "log_to", "lanes",
    "parallel",
}  # fmt: skip
"""Settings without influence on what is computed. The last two only round differently, as another
number of threads does.
"""
SHOWN_DIFFERENCES = 12
"""lines in an error; a model has more settings than a person reads"""


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    """The names whose values differ between two configs as dicts, with both values."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in {**one, **other}:
        a, b = one.get(name), other.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found |= differences(a, b, f"{prefix}{name}.")
        elif a != b:
            found[prefix + name] = (a, b)
    return found


def describe_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """A line for each setting that matters and differs: "steps: 4 there, 5 here"."""
    return [
        f"{name}: {old!r} there, {new!r} here"
        for name, (old, new) in differences(there, here).items()
        if name not in MAY_CHANGE
    ]


def refuse_other_settings(problem: str, lines: Iterable[str], remedy: str) -> None:
    """Raise a ValueError that lists the differences; do nothing if there are none.

    Args:
        problem: what is wrong and where, such as "runs/a is of another config".
        lines: from `describe_differences`; the same line is shown once.
        remedy: what the user can do.
    """
    unique = list(dict.fromkeys(lines))
    if not unique:
        return
    shown = "".join(f"\n  {line}" for line in unique[:SHOWN_DIFFERENCES])
    left = len(unique) - SHOWN_DIFFERENCES
    more = f"\n  and {left} more" if left > 0 else ""
    raise ValueError(f"{problem}:{shown}{more}\n{remedy}")
