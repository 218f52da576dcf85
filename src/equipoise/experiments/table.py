"""The comparison on the terminal: the answer, the figures people decide by, and the differences;
the page has the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from equipoise.results.comparison.answer import answer, rule
from equipoise.results.comparison.columns import DECIDING, TERMINAL_DIFFERENCES, column
from equipoise.results.comparison.differences import against
from equipoise.results.comparison.rows import Results
from equipoise.results.comparison.written import change_cells, change_heading, label
from equipoise.storage.optional import import_optional

CAPTION = (
    "imbalance: mean |load - target| / target; train.: mean over the steps of the training, then "
    "over its first fifth and last "
    "quarter; idle: share of 8 devices' time spent waiting; given up: affinity that exactly even "
    "loads would cost"
)


def show(results: Results) -> None:
    import_optional("rich", extra="train")
    from rich.console import Console

    console, rows = Console(), results.rows
    console.print(answer(results), "", sep="\n", markup=False, highlight=False)
    heads = ["scheme", *(each.short for each in DECIDING)]
    console.print(
        _table(
            heads, ([label(row), *(each.cell(row) for each in DECIDING)] for row in rows), CAPTION
        )
    )
    base, columns = against(rows), [column(key) for key in TERMINAL_DIFFERENCES]
    lines = change_cells(rows, columns)
    if base is not None and any(real is not None for _, cells in lines for _, real in cells):
        heads = [f"less\n{base['label']}", *(change_heading(each, short=True) for each in columns)]
        console.print()
        console.print(
            _table(
                heads,
                ([label(row), *(text for text, _ in cells)] for row, cells in lines),
                rule(results),
            )
        )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> Any:
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
