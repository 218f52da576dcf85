"""The page of a sweep: the best setting of each scheme, loss and imbalance against u, all settings,
and what failed.

Built as the page of a comparison is: it holds everything, and without JavaScript answer and tables
still read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from equipoise.report.frame import fill_page, save_page, wide_table
from equipoise.report.sheets import Sheets
from equipoise.report.sweep.answer import sweep_answer
from equipoise.report.sweep.figures import sweep_figures, sweep_sheets
from equipoise.results.columns import SWEEP_COLUMNS, setting_column
from equipoise.results.sweep import (
    FailedTrial,
    SettingRow,
    SweepResults,
    load_sweep,
)

COMMON_SETTINGS = (
    "preset",
    "data",
    "steps",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "seed",
)
"""that a reader asks for first"""


def report_sweep(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page, by default report.html in the folder, and each figure's data beside it as
    CSV.
    """
    sweep, path = load_sweep(Path(folder)), Path(out) if out else Path(folder) / "report.html"
    sheets = sweep_sheets(sweep.table)
    return save_page(path, sweep_page(sweep, sheets), sheets)


def sweep_page(sweep: SweepResults, sheets: Sheets) -> str:
    """The page's text: a pure function of the sweep."""
    table = sweep.table
    values = {
        "title": escape(f"equipoise sweep: {sweep.title}"),
        "answer": escape(sweep_answer(table)),
        "best": settings_table("best", table.axes, table.best),
        "settings": settings_table("settings", table.axes, table.rows),
        "failed": failure_list(table.failed),
        "common": escape(_common_settings(sweep)),
    }
    schemes = dict.fromkeys(row.scheme for row in table.rows)
    return fill_page("sweep", values, sweep_figures(table), sheets, schemes)


def settings_table(name: str, axes: Sequence[str], rows: Iterable[SettingRow]) -> str:
    columns = [*map(setting_column, axes), *SWEEP_COLUMNS]
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _table_cells(axes, row))}</tr>"
        for row in rows
    )
    return wide_table(["scheme", *(each.name for each in columns), "finished"], body, name)


def failure_list(failed: Sequence[FailedTrial]) -> str:
    if not failed:
        return "<p>None.</p>"
    body = "".join(
        f"<dt>{escape(each['trial'])}</dt><dd><pre>{escape(each['error'])}</pre></dd>"
        for each in failed
    )
    return f"<dl id=failed>{body}</dl>"


def _table_cells(axes: Sequence[str], row: SettingRow) -> list[str]:
    settings = [setting_column(key).text(row.settings.get(key)) for key in axes]
    figures = [column.cell(row.figures, spread=True) for column in SWEEP_COLUMNS]
    return [row.label, *settings, *figures, f"{row.finished} of {row.trials}"]


def _common_settings(sweep: SweepResults) -> str:
    columns = [setting_column(key) for key in COMMON_SETTINGS if key in sweep.common]
    return ", ".join(f"{each.name} {each.text(sweep.common[each.key])}" for each in columns)
