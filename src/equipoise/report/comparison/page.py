"""A comparison as one HTML file.

    report("results")                    writes results/report.html and results/figures/*.csv
    report("docs/results/tiny.json")     the same from a rows.json: docs/results/tiny.html

It follows the reader's dark or light setting. Without JavaScript, answer, tiles, tables and
verdicts still read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from equipoise.report.comparison.data_sheets import comparison_sheets
from equipoise.report.comparison.facts import comparison_facts
from equipoise.report.comparison.figures import ComparisonFigures, comparison_figures
from equipoise.report.comparison.verdicts import verdict_section
from equipoise.report.frame import fill_page, save_page, scheme_mark, wide_table
from equipoise.report.sheets import Sheets
from equipoise.results.columns import (
    COMPARISON_COLUMNS,
    DECIDING_COLUMNS,
    MORE_COLUMNS,
    PAPER_COLUMNS,
    UPDATE_RATE,
    Column,
)
from equipoise.results.comparison.answer import comparison_answer, significance_note
from equipoise.results.comparison.differences import baseline_row, significant_best
from equipoise.results.comparison.rows import ComparisonResults, SchemeRow, read_comparison
from equipoise.results.comparison.tables import (
    ChangeCell,
    change_heading,
    change_rows,
    has_intervals,
    scheme_label,
)


def report_comparison(
    path: str | Path, out: str | Path | None = None, *, price: float | None = None
) -> Path:
    """Write the page, and each figure's data beside it as CSV. Returns the page's path.

    Args:
        path: a results folder, or a rows.json.
        out: the page; by default report.html in the folder, or beside the file and named as it is.
        price: of a device hour: idle time is then told in money too.
    """
    if price is not None and not (math.isfinite(price) and price >= 0):
        raise ValueError(f"the price of a device hour is a number from 0 on, not {price}")
    path = Path(path)
    results = read_comparison(path)
    figures = comparison_figures(results)
    sheets = comparison_sheets(results, figures)
    place = path.with_suffix(".html") if path.is_file() else path / "report.html"
    text = comparison_page(results, figures, sheets, price)
    return save_page(Path(out) if out else place, text, sheets)


def comparison_page(
    results: ComparisonResults,
    figures: ComparisonFigures,
    sheets: Sheets,
    price: float | None = None,
) -> str:
    """The page's text: a pure function of the results."""
    values = {
        "title": escape(f"equipoise: {results.title}"),
        "answer": escape(comparison_answer(results)),
        "facts": comparison_facts(results, price),
        "baseline": figures["baseline"] or "",
        "table": figure_table(results, DECIDING_COLUMNS, "results"),
        "rest": figure_table(results, MORE_COLUMNS, "rest"),
        "meanings": column_meanings(COMPARISON_COLUMNS),
        "differences": difference_table(results),
        "paper": paper_table(results),
        "verdicts": verdict_section(results),
        "missing": escape(missing_sections(figures)),
    }
    names = [row.name for row in results.rows]
    return fill_page("comparison", values, figures, sheets, names)


def figure_table(results: ComparisonResults, columns: Sequence[Column], name: str) -> str:
    """Sortable; the best of a column is bold where it is significant."""
    best = {column.key: significant_best(results.rows, column.key) for column in columns}
    body = "".join(
        f'<tr data-scheme="{escape(row.name, quote=True)}">{_label_cell(row)}'
        + "".join(_figure_cell(column, row, best[column.key] == row.name) for column in columns)
        + "</tr>"
        for row in results.rows
    )
    return _with_meanings(
        wide_table(["scheme", *(each.name for each in columns)], body, name), columns
    )


def difference_table(results: ComparisonResults) -> str:
    """Paired by seed, with intervals; those that are significant are marked."""
    base, lines = baseline_row(results.rows), change_rows(results.rows, DECIDING_COLUMNS)
    if base is None or not lines:
        return "<p id=differences>Nothing to compare with.</p>"
    heads = [f"less {base.label}", *(change_heading(each) for each in DECIDING_COLUMNS)]
    body = "".join(
        f'<tr data-scheme="{escape(row.name, quote=True)}">{_label_cell(row)}'
        f"{''.join(map(_change_html, cells))}</tr>"
        for row, cells in lines
    )
    note = (
        significance_note(results)
        if has_intervals(lines)
        else "One seed: no intervals, and no difference is known to be more than chance."
    )
    table = _with_meanings(wide_table(heads, body, "differences"), DECIDING_COLUMNS)
    return f'{table}<p class="note">{escape(note)}</p>'


def paper_table(results: ComparisonResults) -> str:
    """The u used here, and what the paper reports."""
    columns = (UPDATE_RATE, *PAPER_COLUMNS)
    body = "".join(
        f"<tr>{_label_cell(row)}<td>{row.seeds}</td>"
        f"<td>{UPDATE_RATE.text(row.about['update_rate'])}</td>"
        + "".join(
            f"<td>{each.text(row.about['paper'].get(each.key))}</td>" for each in PAPER_COLUMNS
        )
        + "</tr>"
        for row in results.rows
    )
    return wide_table(["scheme", "seeds", *(each.name for each in columns)], body, "paper")


def column_meanings(columns: Iterable[Column]) -> str:
    items = "".join(
        f"<dt>{escape(each.name)}</dt><dd>{escape(each.meaning)}</dd>" for each in columns
    )
    return f"<dl>{items}</dl>"


def missing_sections(figures: ComparisonFigures) -> str:
    """What this file was made without: files of earlier versions have less in them."""
    missing = []
    if not figures["loads"]:
        missing.append("loads by step (no trace was kept)")
    elif not any("shift" in layer for one in figures["loads"] for layer in one["layers"]):
        missing.append("paths of shifts (an earlier version wrote it; the run folders have them)")
    if not figures["scores"]["schemes"]:
        missing.append("histograms of scores and shifts (train with --histogram-steps)")
    if not figures["price"]:
        missing.append("dual gaps (`equipoise compare` measures them)")
    return f"Not in this file: {'; '.join(missing)}." if missing else ""


def _label_cell(row: SchemeRow) -> str:
    return f"<td>{scheme_mark(row.name)}{escape(scheme_label(row))}</td>"


def _figure_cell(column: Column, row: SchemeRow, best: bool) -> str:
    value = row.mean_of(column.key)
    kind = " class=best" if best else ""
    known = "" if value is None else repr(value)
    text = _stack_interval(column.cell(row.figures, spread=True))
    return f'<td{kind} data-value="{known}">{text}</td>'


def _with_meanings(table: str, columns: Sequence[Column]) -> str:
    """Each heading but the first has its column's definition, for `makeSortable` to tell."""
    heads = iter(columns)
    first, *rest = table.split("<th>")

    def defined(place: int, text: str) -> str:
        if place == 0:
            return f"<th>{text}"
        meaning = escape(next(heads).meaning, quote=True)
        return f'<th title="{meaning}" data-meaning="{meaning}">{text}'

    return first + "".join(defined(place, text) for place, text in enumerate(rest))


def _change_html(cell: ChangeCell) -> str:
    lower = cell.text.startswith("-")
    kind = "" if not cell.significant else " class=good" if lower else " class=bad"
    number = re.match(r"[-+]?[\d.]+(?:inf|nan)?", cell.text)
    return (
        f'<td{kind} data-value="{float(number[0]) if number and cell.text != "-" else ""}">'
        f"{_stack_interval(cell.text)}</td>"
    )


def _stack_interval(text: str) -> str:
    """A number's ± goes below it, so that the table is no wider than the page."""
    return re.sub(r" (± [^ ]+)(.*)", r"\2<small>\1</small>", escape(text))
