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
from equipoise.storage.optional import import_optional

CAPTION = (
    "imbalance: mean |load - target| / target; train.: mean over the steps of the training, then "
    "over its first fifth and last quarter; idle: share of 8 devices' time spent waiting; given "
    "up: affinity that exactly even loads would cost"
)


def show_comparison(results: ComparisonResults) -> None:
    import_optional("rich", extra="train")
    from rich.console import Console

    console, rows = Console(), results.rows
    console.print(comparison_answer(results), "", sep="\n", markup=False, highlight=False)
    heads = ["scheme", *(each.short for each in DECIDING_COLUMNS)]
    console.print(
        _terminal_table(heads, figure_rows(rows, DECIDING_COLUMNS, spread=False), CAPTION)
    )
    base, lines = baseline_row(rows), change_rows(rows, TERMINAL_DIFFERENCES)
    if base is None or not has_intervals(lines):
        return
    names = [change_heading(each, short=True) for each in TERMINAL_DIFFERENCES]
    changes = ([scheme_label(row), *(cell.text for cell in cells)] for row, cells in lines)
    console.print()
    console.print(
        _terminal_table([f"less\n{base.label}", *names], changes, significance_note(results))
    )


def _terminal_table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> Any:
    from rich.markup import escape
    from rich.table import Table

    made = Table(caption=escape(caption), caption_justify="left", box=None, padding=(0, 0, 0, 1))
    for place, name in enumerate(heads):
        made.add_column(
            escape(name), justify="right" if place else "left", vertical="bottom", overflow="fold"
        )
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made
