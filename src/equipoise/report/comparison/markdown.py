"""A comparison's answer and tables as Markdown, for a README."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from equipoise.results.columns import DECIDING_COLUMNS
from equipoise.results.comparison.answer import comparison_answer, significance_note
from equipoise.results.comparison.differences import baseline_row
from equipoise.results.comparison.rows import ComparisonResults
from equipoise.results.comparison.tables import (
    change_heading,
    change_rows,
    figure_rows,
    scheme_label,
)


def comparison_markdown(results: ComparisonResults) -> str:
    """The answer, the table and the differences."""
    rows, columns = results.rows, DECIDING_COLUMNS
    heads = ["scheme", *(each.name for each in columns)]
    parts = [
        comparison_answer(results),
        _pipe_table(heads, figure_rows(rows, columns, spread=True)),
    ]
    base, lines = baseline_row(rows), change_rows(rows, columns)
    if base is not None and lines:
        heads = [f"less {base.label}", *(change_heading(each) for each in columns)]
        changes = [[scheme_label(row), *(cell.text for cell in cells)] for row, cells in lines]
        parts += [_pipe_table(heads, changes), significance_note(results)]
    return "\n\n".join(parts)


def _pipe_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
