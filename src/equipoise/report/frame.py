"""shell: what all pages have around their own part: head, answer, plotly, data and scripts, in one
file.

The page holds everything: tables and text as HTML, data and plotly compressed (the browser unpacks
them), no address of any other place. Whatever comes from the user is escaped before it gets here.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from equipoise.storage.atomic import write_text
from equipoise.storage.optional import import_optional


def fill(
    kind: str, values: Mapping[str, str], figures: Mapping[str, Any], sheets: Mapping[str, str]
) -> str:
    """The text of a page whose own part is KIND.html, with KIND.css and KIND.js: a pure function of
    what is given.

    Args:
        kind: "page", "arena" or "sweep".
        values: HTML for the names in the templates; `title` and `answer` are among them.
        figures: by name, for KIND.js.
        sheets: CSV by name, for the buttons.
    """
    room = "comparison" if kind == "page" else kind
    around = {
        "body": _filled(_resource(f"{room}/{kind}.html"), values),
        "style": "".join(
            map(_resource, dict.fromkeys(("comparison/page.css", f"{room}/{kind}.css")))
        ),
        "script": _resource("common.js") + _resource(f"{room}/{kind}.js"),
        "plotly": _plotly(),
        "data": _packed(json.dumps({"figures": figures, "csv": sheets}, separators=(",", ":"))),
    }
    return _filled(_resource("frame.html"), {**values, **around})


def save(path: Path, text: str, sheets: Mapping[str, str]) -> Path:
    """Write a page, and each figure's data beside it as CSV."""
    (path.parent / "figures").mkdir(parents=True, exist_ok=True)
    for name, sheet in sheets.items():
        write_text(path.parent / "figures" / f"{name}.csv", sheet)
    write_text(path, text)
    return path


def number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def with_spread(row: Mapping[str, Any], name: str, form: str) -> str:
    spread = row[f"{name}_spread"]
    return number(row[name], form) + (
        "" if spread is None else " ± " + form.replace("+", "").format(spread)
    )


def _filled(template: str, values: Mapping[str, str]) -> str:
    """In one pass: what is filled in is never looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def _packed(text: str) -> str:
    """Compressed, and in letters that mean nothing in HTML. No time in it: the same data give the
    same page.
    """
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


@cache
def _plotly() -> str:
    offline = import_optional("plotly.offline", extra="report")
    return _packed(offline.get_plotlyjs())


def _resource(name: str) -> str:
    return files("equipoise.report").joinpath(name).read_text(encoding="utf-8")
