"""The comparison on the terminal: the answer, the figures people decide by, and the differences;
the page has the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from equipoise.results.columns import DECIDING_COLUMNS, TERMINAL_DIFFERENCES
from equipoise.results.comparison.answer import comparison_answer, significance_note
from equipoise.results.comparison.differences import baseline_row
from equipoise.results.comparison.rows import ComparisonResults
from equipoise.results.comparison.tables import (
    change_heading,
    change_rows,
    figure_rows,
    has_intervals,
    scheme_label,
)
from equipoise.results.scheme_style import terminal_label
from equipoise.results.terminal_table import terminal_table
from equipoise.storage.optional import import_optional

CAPTION = (
    "imbalance, imb.: mean |load - target| / target, in brackets what chance alone leaves; "
    "whole: mean over the steps of the training, then over its first fifth and last quarter; "
    "idle: share of 8 devices' time spent waiting; given up: affinity that exactly even loads "
    "would cost"
)


def show_comparison(results: ComparisonResults) -> None:
    import_optional("rich", extra="train")
    from rich.console import Console

    console, rows = Console(), results.rows
    console.print(comparison_answer(results), "", sep="\n", markup=False, highlight=False)
    heads = ["scheme", *(each.short for each in DECIDING_COLUMNS)]
    cells = zip(rows, figure_rows(rows, DECIDING_COLUMNS, spread=False), strict=True)
    figures = (
        [terminal_label(row.name, label), *map(_shorter_cell, rest)]
        for row, (label, *rest) in cells
    )
    console.print(_terminal_table(heads, figures, CAPTION))
    base, lines = baseline_row(rows), change_rows(rows, TERMINAL_DIFFERENCES)
    if base is None or not has_intervals(lines):
        return
    names = [change_heading(each, short=True) for each in TERMINAL_DIFFERENCES]
    changes = (
        [terminal_label(row.name, scheme_label(row)), *(_shorter_cell(cell.text) for cell in cells)]
        for row, cells in lines
    )
    console.print()
    console.print(
        _terminal_table([f"less\n{base.label}", *names], changes, significance_note(results))
    )


def _shorter_cell(written: str) -> str:
    """For eighty columns: an interval has a line of its own, or it breaks anywhere."""
    return written.replace("(chance ", "(").replace(" ± ", "\n± ")


def _terminal_table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> Any:
    """The first cell of a row is rich's markup already; the others are plain text."""
    from rich.markup import escape

    made = terminal_table(heads, caption=caption)
    for row in rows:
        made.add_row(row[0], *(escape(cell) for cell in row[1:]))
    return made
