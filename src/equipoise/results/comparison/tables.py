"""tables: a comparison's rows and differences as cells of text, for terminal, page and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from equipoise.results.columns import Column
from equipoise.results.comparison.differences import Difference, baseline_row, scheme_differences
from equipoise.results.comparison.rows import SchemeRow


class ChangeCell(NamedTuple):
    """A difference as text."""

    text: str
    significant: bool | None
    """None where there is no interval"""


def scheme_label(row: SchemeRow) -> str:
    return row.label + (f" ({len(row.failed)} failed)" if row.failed else "")


def figure_rows(
    rows: Sequence[SchemeRow], columns: Sequence[Column], *, spread: bool
) -> list[list[str]]:
    """For each scheme its label and its figures."""
    return [
        [scheme_label(row), *(column.cell(row.figures, spread=spread) for column in columns)]
        for row in rows
    ]


def change_rows(
    rows: Sequence[SchemeRow], columns: Sequence[Column]
) -> list[tuple[SchemeRow, list[ChangeCell]]]:
    """For each scheme but the one compared with: its differences."""
    base = baseline_row(rows)
    found = [(column, scheme_differences(rows, column.key)) for column in columns]
    return [
        (row, [_change_cell(column, by_scheme.get(row.name)) for column, by_scheme in found])
        for row in rows
        if row is not base and row.seeds
    ]


def _change_cell(column: Column, each: Difference | None) -> ChangeCell:
    if each is None:
        return ChangeCell("-", None)
    text = column.change(each.mean, each.half) + ("*" if each.significant else "")
    return ChangeCell(text, None if each.half is None else each.significant)


def has_intervals(lines: Sequence[tuple[SchemeRow, Sequence[ChangeCell]]]) -> bool:
    return any(cell.significant is not None for _, cells in lines for cell in cells)


def change_heading(column: Column, *, short: bool = False) -> str:
    name, between = (column.short, "\n") if short else (column.name, " ")
    unit = column.difference_unit
    return f"{name}{between}({unit})" if unit else name
