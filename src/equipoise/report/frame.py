"""frame: what all pages have around their own part: head, answer, plotly, data and scripts, in one
file.

The page holds everything: tables and text as HTML, data and plotly compressed (the browser unpacks
them), no address of any other place. Whatever comes from the user is escaped before it gets here.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from equipoise.results.scheme_style import style_of_scheme, styles_to_json
from equipoise.storage.atomic import write_text
from equipoise.storage.optional import import_optional


class Tile(NamedTuple):
    """A figure on top of a page. The body is HTML already."""

    name: str
    value: str
    body: str = ""


def fill_page(
    kind: str,
    values: Mapping[str, str],
    figures: Mapping[str, object],
    sheets: Mapping[str, str],
    schemes: Iterable[str] = (),
    *,
    plotly: bool = True,
) -> str:
    """The text of a page whose own part is KIND/KIND.html, with KIND.css and KIND.js beside it: a
    pure function of what is given.

    Args:
        kind: the folder's name: "comparison", "arena", "sweep", ...
        values: HTML for the names in the templates; `title` and `answer` are among them, `facts`
            (chips, tiles) may be.
        figures: by name, for KIND.js.
        sheets: CSV by name, for the buttons.
        schemes: names whose colour and marker the page needs.
        plotly: whether KIND.js draws with it; it is nearly all of a page's size.
    """
    data = {"figures": figures, "csv": sheets, "styles": styles_to_json(schemes)}
    around = {
        "body": _fill_template(_resource(f"{kind}/{kind}.html"), values),
        "style": _resource("frame.css") + _resource(f"{kind}/{kind}.css"),
        "script": "".join(
            map(_resource, ("frame.js", "charts.js", "lines.js", f"{kind}/{kind}.js"))
        ),
        "plotly": _packed_plotly() if plotly else "",
        "data": _pack_text(json.dumps(data, separators=(",", ":"))),
    }
    return _fill_template(_resource("frame.html"), {"facts": "", **values, **around})


def save_page(path: Path, text: str, sheets: Mapping[str, str]) -> Path:
    """Write a page, and each figure's data beside it as CSV."""
    (path.parent / "figures").mkdir(parents=True, exist_ok=True)
    for name, sheet in sheets.items():
        write_text(path.parent / "figures" / f"{name}.csv", sheet)
    write_text(path, text)
    return path


def html_table(heading: Iterable[str], body: str, name: str = "") -> str:
    """A table; its body is HTML already, its heading is escaped here."""
    heads = "".join(f"<th>{escape(each)}</th>" for each in heading)
    start = f"<table id={name}>" if name else "<table>"
    return f"{start}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def wide_table(heading: Iterable[str], body: str, name: str) -> str:
    """A table that may be wider than the page: it scrolls by itself."""
    return f"<div class=wide>{html_table(heading, body, name)}</div>"


def chip_list(facts: Iterable[tuple[str, str]], command: str = "") -> str:
    """Short facts in a row: what was done, with which version, and the command to repeat it."""
    chips = [
        f"<li><span>{escape(name)}</span> {escape(value)}</li>" for name, value in facts if value
    ]
    if command:
        chips.append(f"<li class=code>{escape(command)}</li>")
    return f"<ul class=chips>{''.join(chips)}</ul>"


def tile_row(tiles: Iterable[Tile]) -> str:
    """The figures on top of a page, side by side; below each other on a phone."""
    made = "".join(
        f"<section class=tile><h2>{escape(each.name)}</h2>"
        f"<strong>{escape(each.value)}</strong>{each.body}</section>"
        for each in tiles
    )
    return f"<div class=tiles>{made}</div>"


def scheme_mark(name: str) -> str:
    """A scheme's marker in its colour, for in front of its label."""
    style = style_of_scheme(name)
    return f'<i class=glyph style="color:{style.color}">{style.glyph}</i> '


def _fill_template(template: str, values: Mapping[str, str]) -> str:
    """In one pass: what is filled in is never looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def _pack_text(text: str) -> str:
    """Compressed, and in letters that mean nothing in HTML. No time in it: the same data give the
    same page.
    """
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


@cache
def _packed_plotly() -> str:
    offline = import_optional("plotly.offline", extra="report")
    return _pack_text(offline.get_plotlyjs())


def _resource(name: str) -> str:
    return files("equipoise.report").joinpath(name).read_text(encoding="utf-8")
