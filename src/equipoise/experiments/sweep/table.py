"""A sweep as tables on the terminal: the best setting of each scheme, all settings, and what
failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equipoise.results.columns import SWEEP_COLUMNS, setting_column
from equipoise.results.sweep import SettingRow, SweepTable
from equipoise.results.terminal_table import terminal_table
from equipoise.storage.optional import import_optional


def show_sweep(table: SweepTable) -> None:
    import_optional("rich", extra="train")
    from rich.console import Console

    console = Console()
    if table.rows:
        console.print(_ranked_table("All settings, by validation loss", table.axes, table.rows))
    if table.best:
        console.print(_ranked_table("The best of each scheme", table.axes, table.best))
    for row in table.best:
        if row.at_the_end:
            ends = ", ".join(setting_column(key).short for key in row.at_the_end)
            console.print(
                f"{row.label}: {ends} at an end of what was tried; better may lie beyond",
                markup=False,
            )
    for each in table.failed:
        console.print(
            f"FAILED {each['trial']}: {last_lines(each['error'])}", markup=False, highlight=False
        )


def setting_cells(row: SettingRow, axes: Sequence[str]) -> list[str]:
    count = "" if row.complete else f" ({row.finished} of {row.trials} finished)"
    settings = [setting_column(key).text(row.settings.get(key)) for key in axes]
    figures = [column.cell(row.figures, spread=True) for column in SWEEP_COLUMNS]
    return [row.label + count, *settings, *figures]


def last_lines(error: str) -> str:
    """What a person wants to read first: the last line of the error, and how the training ended."""
    lines = [line for line in error.splitlines() if line.strip()]
    return " ".join(lines[-2:])


def _ranked_table(title: str, axes: Sequence[str], rows: Sequence[SettingRow]) -> Any:
    from rich.markup import escape

    columns = [*map(setting_column, axes), *SWEEP_COLUMNS]
    made = terminal_table(["scheme", *(column.short for column in columns)], title=title)
    for row in rows:
        made.add_row(*(escape(cell) for cell in setting_cells(row, axes)))
    return made
