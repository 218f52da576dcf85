"""The data of a sweep's figures: loss and imbalance against u, for each scheme; and the same as
CSV.

At each u a scheme is shown at the setting of everything else with the lowest validation loss, as
the paper chose it. A scheme without u is a level line.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, TypedDict

from equipoise.report.sheets import Sheets, csv_sheet
from equipoise.results.columns import (
    SWEEP_KEYS,
    UPDATE_RATE,
    VALIDATION_IMBALANCE,
    VALIDATION_LOSS,
)
from equipoise.results.sweep import SettingRow, SweepTable

BY_RATE = {"loss_by_rate": VALIDATION_LOSS.key, "imbalance_by_rate": VALIDATION_IMBALANCE.key}
"""the figures, and what each shows"""


class RateLine(TypedDict):
    """A scheme's line. Plotly reads a little HTML in its texts, so these are escaped."""

    scheme: str
    """the name that its colour and marker follow from"""
    label: str
    x: list[float | None]
    y: list[float | None]
    spread: list[float | None]
    setting: list[str]


def sweep_figures(table: SweepTable) -> dict[str, list[RateLine]]:
    chosen = _chosen_by_scheme(table)
    if all(list(rows) == [None] for rows in chosen.values()):
        return {name: [] for name in BY_RATE}  # nothing has a u
    return {
        name: [_rate_line(list(rows.values()), key) for rows in chosen.values()]
        for name, key in BY_RATE.items()
    }


def best_by_rate(rows: Sequence[SettingRow]) -> dict[float | None, SettingRow]:
    """For each u the row with the lowest validation loss; `rows` are sorted by it."""
    found: dict[float | None, SettingRow] = {}
    for row in rows:
        found.setdefault(row.settings.get(UPDATE_RATE.key), row)
    return dict(sorted(found.items(), key=lambda item: (item[0] is not None, item[0] or 0.0)))


def _chosen_by_scheme(table: SweepTable) -> dict[str, dict[float | None, SettingRow]]:
    """In the order of the table of best settings."""
    schemes = dict.fromkeys(row.scheme for row in (*table.best, *table.with_loss))
    return {
        scheme: best_by_rate([row for row in table.with_loss if row.scheme == scheme])
        for scheme in schemes
    }


def _rate_line(rows: Sequence[SettingRow], key: str) -> RateLine:
    return {
        "scheme": rows[0].scheme,
        "label": escape(rows[0].label),
        "x": [row.settings.get(UPDATE_RATE.key) for row in rows],
        "y": [_rounded(row.figures[key].mean) for row in rows],
        "spread": [_rounded(row.figures[key].spread) for row in rows],
        "setting": [escape(row.described_settings()) for row in rows],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def sweep_sheets(table: SweepTable) -> Sheets:
    """Each figure's data, and all settings, as CSV."""
    schemes = dict.fromkeys(row.scheme for row in table.with_loss)
    chosen = [
        row
        for scheme in schemes
        for row in best_by_rate(
            [each for each in table.with_loss if each.scheme == scheme]
        ).values()
    ]
    by_rate = {
        name: csv_sheet(
            ("scheme", "u", key, "spread", "setting"), [_rate_cells(row, key) for row in chosen]
        )
        for name, key in BY_RATE.items()
    }
    return {**by_rate, "settings": _settings_sheet(table)}


def _rate_cells(row: SettingRow, key: str) -> tuple[Any, ...]:
    figure, rate = row.figures[key], row.settings.get(UPDATE_RATE.key)
    return row.label, rate, figure.mean, figure.spread, row.described_settings()


def _settings_sheet(table: SweepTable) -> str:
    heading = ["scheme", *table.axes, "trials", "finished"]
    heading += [f"{key}{kind}" for key in SWEEP_KEYS for kind in ("", "_spread")]
    rows = []
    for row in table.rows:
        settings = [row.settings.get(key) for key in table.axes]
        figures = [row.figures[key] for key in SWEEP_KEYS]
        numbers = [number for figure in figures for number in (figure.mean, figure.spread)]
        rows.append([row.label, *settings, row.trials, row.finished, *numbers])
    return csv_sheet(heading, rows)
