"""A comparison or a training as one HTML file.

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

from equipoise.report.comparison.figures import (
    ComparisonFigures,
    comparison_figures,
    comparison_sheets,
)
from equipoise.report.frame import fill_page, save_page, wide_table
from equipoise.report.sheets import Sheets
from equipoise.results.columns import (
    DECIDING_COLUMNS,
    MORE_COLUMNS,
    PAPER_COLUMNS,
    UPDATE_RATE,
    Column,
)
from equipoise.results.comparison.answer import comparison_answer, significance_note
from equipoise.results.comparison.differences import baseline_row
from equipoise.results.comparison.rows import ComparisonResults, SchemeRow, read_comparison
from equipoise.results.comparison.tables import (
    ChangeCell,
    change_heading,
    change_rows,
    figure_rows,
    has_intervals,
    scheme_label,
)
from equipoise.results.run import VerdictRow


def report_comparison(path: str | Path, out: str | Path | None = None) -> Path:
    """Write the page, and each figure's data beside it as CSV. Returns the page's path.

    Args:
        path: a results folder, or a rows.json.
        out: the page; by default report.html in the folder, or beside the file and named as it is.
    """
    path = Path(path)
    results = read_comparison(path)
    figures = comparison_figures(results)
    sheets = comparison_sheets(results, figures)
    place = path.with_suffix(".html") if path.is_file() else path / "report.html"
    return save_page(Path(out) if out else place, comparison_page(results, figures, sheets), sheets)


def comparison_page(results: ComparisonResults, figures: ComparisonFigures, sheets: Sheets) -> str:
    """The page's text: a pure function of the results."""
    values = {
        "title": escape(f"equipoise: {results.title}"),
        "answer": escape(comparison_answer(results)),
        "table": deciding_table(results),
        "meanings": column_meanings(DECIDING_COLUMNS),
        "differences": difference_table(results),
        "rest": more_table(results),
        "rest_meanings": column_meanings(MORE_COLUMNS),
        "verdicts": verdict_table(results),
    }
    return fill_page("comparison", values, figures, sheets)


def deciding_table(results: ComparisonResults) -> str:
    """The figures people decide by."""
    rows = figure_rows(results.rows, DECIDING_COLUMNS, spread=True)
    heads = ["scheme", *(each.name for each in DECIDING_COLUMNS)]
    return wide_table(heads, _html_rows(rows), "results")


def difference_table(results: ComparisonResults) -> str:
    """Paired by seed, with intervals; those that are significant are marked."""
    base, lines = baseline_row(results.rows), change_rows(results.rows, DECIDING_COLUMNS)
    if base is None or not lines:
        return "<p id=differences>Nothing to compare with.</p>"
    heads = [f"less {base.label}", *(change_heading(each) for each in DECIDING_COLUMNS)]
    body = "".join(
        f"<tr><td>{escape(scheme_label(row))}</td>{''.join(map(_change_html, cells))}</tr>"
        for row, cells in lines
    )
    note = (
        significance_note(results)
        if has_intervals(lines)
        else "One seed: no intervals, and no difference is known to be more than chance."
    )
    return f'{wide_table(heads, body, "differences")}<p class="note">{escape(note)}</p>'


def more_table(results: ComparisonResults) -> str:
    """The other figures, and what the paper reports."""
    columns = (UPDATE_RATE, *MORE_COLUMNS, *PAPER_COLUMNS)
    heads = ["scheme", "seeds", *(each.name for each in columns)]
    return wide_table(heads, _html_rows(map(_more_cells, results.rows)), "rest")


def _more_cells(row: SchemeRow) -> list[str]:
    about = row.about
    return [
        scheme_label(row),
        str(row.seeds),
        UPDATE_RATE.text(about["update_rate"]),
        *(each.cell(row.figures, spread=True) for each in MORE_COLUMNS),
        *(each.text(about["paper"].get(each.key)) for each in PAPER_COLUMNS),
    ]


def column_meanings(columns: Iterable[Column]) -> str:
    return " ".join(f"<b>{escape(each.name)}</b>: {escape(each.meaning)}." for each in columns)


def verdict_table(results: ComparisonResults) -> str:
    """Statements down, schemes across: a tick with its margin, a cross, or why it does not apply
    (on hovering).
    """
    found = {
        scheme.label: verdicts
        for scheme in results.schemes
        if scheme.runs and (verdicts := scheme.runs[0]["measured"].get("verdicts"))
    }
    if not found:
        return "<p>No verdicts: a run has them once `equipoise compare` has measured it.</p>"
    names = [verdict["name"] for verdict in next(iter(found.values()))]
    body = "".join(
        f"<tr><td>{escape(name)}</td>"
        f"{''.join(_verdict_cell(each[n]) for each in found.values())}</tr>"
        for n, name in enumerate(names)
    )
    return wide_table(("statement", *found), body, "verdicts")


def _verdict_cell(verdict: VerdictRow) -> str:
    why = escape(str(verdict["why"]), quote=True)
    if not verdict["applies"]:
        return f'<td class=mute title="{why}">n/a</td>'
    # an assumption that fails refutes nothing
    wrong = "mute" if verdict["name"].startswith("assumption: ") else "bad"
    kind, sign = ("good", "✓") if verdict["holds"] else (wrong, "✗")
    return f'<td class={kind} title="{why}">{sign} {verdict["margin"]:.2g}</td>'


def _change_html(cell: ChangeCell) -> str:
    lower = cell.text.startswith("-")
    kind = "" if not cell.significant else " class=good" if lower else " class=bad"
    return f"<td{kind}>{_stack_interval(cell.text)}</td>"


def _stack_interval(text: str) -> str:
    """A number's ± goes below it, so that the table is no wider than the page."""
    return re.sub(r" (± [^ ]+)(.*)", r"\2<small>\1</small>", escape(text))


def _html_rows(rows: Iterable[Iterable[str]]) -> str:
    return "".join(
        f"<tr>{''.join(f'<td>{_stack_interval(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
