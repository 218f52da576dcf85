"""report: a results folder as one HTML file.

    report("results")            writes results/report.html and results/figures/*.csv

The page holds everything: tables and text as HTML, data and plotly compressed (the browser unpacks them), no address of any
other machine. It follows the reader's dark or light setting. Without JavaScript, answer, tables and verdicts still read.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from equipoise.extras import require
from equipoise.report.answer import answer
from equipoise.report.figures import figures, tables
from equipoise.report.read import Results, read_results, verdicts
from equipoise.training.files import write_text

COLUMNS = {
    "validation loss": ("validation_loss", "{:.4f}"),
    "imbalance": ("imbalance", "{:.4f}"),
    "MaxVio": ("max_violation", "{:.3f}"),
    "idle, 8 devices": ("idle_share", "{:.1%}"),
    "given up": ("given_up", "{:+.2%}"),
    "dual gap": ("dual_gap", "{:.2%}"),
}


def report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page, and each figure's data beside it as CSV. Returns the page's path."""
    folder = Path(folder)
    results = read_results(folder)
    path = Path(out) if out else folder / "report.html"
    made = figures(results)
    (path.parent / "figures").mkdir(parents=True, exist_ok=True)
    sheets = tables(made)
    for name, text in sheets.items():
        write_text(path.parent / "figures" / f"{name}.csv", text)
    write_text(path, page(results, made, sheets))
    return path


def page(results: Results, made: dict[str, Any], sheets: dict[str, str]) -> str:
    """The page's text: a pure function of the results."""
    values = {
        "title": escape(f"equipoise: {results.title}"),
        "answer": escape(answer(results)),
        "table": table(results),
        "verdicts": verdict_table(results),
        "style": _resource("page.css"),
        "script": _resource("common.js") + _resource("page.js"),
        "plotly": plotly(),
        "data": packed(json.dumps({"figures": made, "csv": sheets}, separators=(",", ":"))),
    }
    # one pass over the template: what is filled in is never looked at again
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], _resource("page.html"))


def table(results: Results) -> str:
    heading = ["scheme", "u", *COLUMNS, "paper: u", "paper: loss", "paper: imbalance"]
    rows = []
    for series in results.series:
        row, paper = series.row, series.row["paper"]
        failed = f" ({len(row['failed'])} failed)" if row["failed"] else ""
        rows.append(
            [row["label"] + failed, _number(row["update_rate"], "{:g}")]
            + [_spread(row, name, form) for name, form in COLUMNS.values()]
            + [_number(paper["update_rate"], "{:g}"), _number(paper["validation_loss"], "{:.3f}")]
            + [_number(paper["imbalance"], "{:.3f}")]
        )
    return _html_table(heading, rows)


def verdict_table(results: Results) -> str:
    """Statements down, schemes across: a tick with its margin, a cross, or why it does not apply (on hovering)."""
    found = {series.label: verdicts(series.runs[0]) for series in results.series if series.runs}
    found = {label: each for label, each in found.items() if each}
    if not found:
        return "<p>No verdicts: a run has them once `equipoise compare` has measured it.</p>"
    names = [verdict["name"] for verdict in next(iter(found.values()))]
    heads = "".join(f"<th>{escape(label)}</th>" for label in ("statement", *found))
    body = []
    for n, name in enumerate(names):
        cells = "".join(_verdict(each[n]) for each in found.values())
        body.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    return f"<div class=wide><table id=verdicts><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"


def _verdict(verdict: dict[str, Any]) -> str:
    told = escape(str(verdict["why"]), quote=True)
    if not verdict["applies"]:
        return f'<td class=mute title="{told}">n/a</td>'
    kind, sign = ("good", "✓") if verdict["holds"] else ("bad", "✗")
    return f'<td class={kind} title="{told}">{sign} {verdict["margin"]:.2g}</td>'


def _html_table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = "".join(f"<th>{escape(each)}</th>" for each in heading)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=wide><table id=results><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"


def _spread(row: dict[str, Any], name: str, form: str) -> str:
    spread = row[f"{name}_spread"]
    return _number(row[name], form) + ("" if spread is None else " ± " + form.replace("+", "").format(spread))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def packed(text: str) -> str:
    """Compressed, and in letters that mean nothing in HTML. No time in it: the same data give the same page."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


@cache
def plotly() -> str:
    offline = require("plotly.offline", extra="report")
    return packed(offline.get_plotlyjs())


def _resource(name: str) -> str:
    return files("equipoise.report").joinpath(name).read_text(encoding="utf-8")
