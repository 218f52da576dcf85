"""report: the results folder of a comparison or a training as one HTML file.

    report("results")            writes results/report.html and results/figures/*.csv

It follows the reader's dark or light setting. Without JavaScript, answer, tables and verdicts still read.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from equipoise.report.answer import answer
from equipoise.report.figures import figures, tables
from equipoise.report.read import Results, read_results, verdicts
from equipoise.report.shell import fill, number, save, with_spread

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
    sheets = tables(made)
    return save(path, page(results, made, sheets), sheets)


def page(results: Results, made: dict[str, Any], sheets: dict[str, str]) -> str:
    """The page's text: a pure function of the results."""
    values = {
        "title": escape(f"equipoise: {results.title}"),
        "answer": escape(answer(results)),
        "table": table(results),
        "verdicts": verdict_table(results),
    }
    return fill("page", values, made, sheets)


def table(results: Results) -> str:
    heading = ["scheme", "u", *COLUMNS, "paper: u", "paper: loss", "paper: imbalance"]
    rows = []
    for series in results.series:
        row, paper = series.row, series.row["paper"]
        failed = f" ({len(row['failed'])} failed)" if row["failed"] else ""
        rows.append(
            [row["label"] + failed, number(row["update_rate"], "{:g}")]
            + [with_spread(row, name, form) for name, form in COLUMNS.values()]
            + [number(paper["update_rate"], "{:g}"), number(paper["validation_loss"], "{:.3f}")]
            + [number(paper["imbalance"], "{:.3f}")]
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
