"""report: a comparison or a training as one HTML file.

    report("results")                    writes results/report.html and results/figures/*.csv
    report("docs/results/tiny.json")     the same from a rows.json: docs/results/tiny.html

It follows the reader's dark or light setting. Without JavaScript, answer, tables and verdicts still
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from equipoise.report.comparison.figures import figures, tables
from equipoise.report.comparison.read import read_results
from equipoise.report.frame import fill, number, save
from equipoise.results.comparison.answer import answer, rule
from equipoise.results.comparison.columns import DECIDING, REST, Column
from equipoise.results.comparison.differences import against
from equipoise.results.comparison.rows import Results
from equipoise.results.comparison.written import change_cells, change_heading, label


def report(path: str | Path, out: str | Path | None = None) -> Path:
    """Write the page, and each figure's data beside it as CSV. Returns the page's path.

    Args:
        path: a results folder, or a rows.json.
        out: the page; by default report.html in the folder, or beside the file and named as it is.
    """
    path = Path(path)
    results = read_results(path)
    made = figures(results)
    sheets = tables(results, made)
    place = path.with_suffix(".html") if path.is_file() else path / "report.html"
    return save(Path(out) if out else place, page(results, made, sheets), sheets)


def page(results: Results, made: dict[str, Any], sheets: dict[str, str]) -> str:
    """The page's text: a pure function of the results."""
    values = {
        "title": escape(f"equipoise: {results.title}"),
        "answer": escape(answer(results)),
        "table": table(results),
        "meanings": meanings(DECIDING),
        "differences": difference_table(results),
        "rest": rest_table(results),
        "rest_meanings": meanings(REST),
        "verdicts": verdict_table(results),
    }
    return fill("page", values, made, sheets)


def table(results: Results) -> str:
    """The figures people decide by."""
    rows = [
        [label(row), *(each.cell(row, spread=True) for each in DECIDING)] for row in results.rows
    ]
    return _html_table("results", ["scheme", *(each.name for each in DECIDING)], rows)


def difference_table(results: Results) -> str:
    """Paired by seed, with intervals; those that are real are marked."""
    base, lines = against(results.rows), change_cells(results.rows, DECIDING)
    if base is None or not lines:
        return "<p id=differences>Nothing to compare with.</p>"
    heads = [f"less {base['label']}", *(change_heading(each) for each in DECIDING)]
    body = "".join(
        f"<tr><td>{escape(label(row))}</td>{''.join(_change(text, real) for text, real in cells)}</tr>"
        for row, cells in lines
    )
    heading = "".join(f"<th>{escape(each)}</th>" for each in heads)
    made = (
        "<div class=wide><table "
        f"id=differences><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    intervals = any(real is not None for _, cells in lines for _, real in cells)
    told = (
        rule(results)
        if intervals
        else "One seed: no intervals, and no difference is known to be more than chance."
    )
    return f'{made}<p class="note">{escape(told)}</p>'


def rest_table(results: Results) -> str:
    heading = [
        "scheme",
        "seeds",
        "u",
        *(each.name for each in REST),
        "paper: u",
        "paper: loss",
        "paper: imbalance",
    ]
    rows = []
    for row in results.rows:
        paper = row["paper"]
        rows.append(
            [label(row), str(row["seeds"]), number(row["update_rate"], "{:g}")]
            + [each.cell(row, spread=True) for each in REST]
            + [number(paper["update_rate"], "{:g}"), number(paper["validation_loss"], "{:.3f}")]
            + [number(paper["imbalance"], "{:.3f}")]
        )
    return _html_table("rest", heading, rows)


def meanings(columns: Iterable[Column]) -> str:
    return " ".join(f"<b>{escape(each.name)}</b>: {escape(each.meaning)}." for each in columns)


def verdict_table(results: Results) -> str:
    """Statements down, schemes across: a tick with its margin, a cross, or why it does not apply
    (on hovering).
    """
    found = {
        series.label: series.runs[0]["measured"].get("verdicts")
        for series in results.series
        if series.runs
    }
    found = {label: each for label, each in found.items() if each}
    if not found:
        return "<p>No verdicts: a run has them once `equipoise compare` has measured it.</p>"
    names = [verdict["name"] for verdict in next(iter(found.values()))]
    heads = "".join(f"<th>{escape(label)}</th>" for label in ("statement", *found))
    body = []
    for n, name in enumerate(names):
        cells = "".join(_verdict(each[n]) for each in found.values())
        body.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    return (
        "<div class=wide><table "
        f"id=verdicts><thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _verdict(verdict: dict[str, Any]) -> str:
    told = escape(str(verdict["why"]), quote=True)
    if not verdict["applies"]:
        return f'<td class=mute title="{told}">n/a</td>'
    kind, sign = ("good", "✓") if verdict["holds"] else ("bad", "✗")
    return f'<td class={kind} title="{told}">{sign} {verdict["margin"]:.2g}</td>'


def _change(text: str, real: bool | None) -> str:
    kind = "" if not real else " class=good" if text.startswith("-") else " class=bad"
    return f"<td{kind}>{_stacked(text)}</td>"


def _stacked(text: str) -> str:
    """A number's ± goes below it, so that the table is no wider than the page."""
    return re.sub(r" (± [^ ]+)(.*)", r"\2<small>\1</small>", escape(text))


def _html_table(name: str, heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = "".join(f"<th>{escape(each)}</th>" for each in heading)
    body = "".join(
        "<tr>" + "".join(f"<td>{_stacked(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        "<div class=wide><table "
        f"id={name}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )
