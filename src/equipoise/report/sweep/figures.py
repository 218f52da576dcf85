"""The data of a sweep's figures: loss and imbalance against u, for each scheme; and the same as
CSV.

At each u a scheme is shown at the setting of everything else with the lowest validation loss, as
the paper chose it. A scheme without u is a level line.
"""

from __future__ import annotations

from html import escape
from typing import Any

from equipoise.report.sweep.read import RATE, Row, Sweep, setting
from equipoise.results.comparison.written import as_csv

FIGURES = {"loss_by_rate": "validation_loss", "imbalance_by_rate": "imbalance"}


def figures(sweep: Sweep) -> dict[str, Any]:
    """Plotly reads a little HTML in its texts, so labels are escaped here."""
    schemes = dict.fromkeys(row["scheme"] for row in (*sweep.best, *sweep.finished))
    chosen = {
        scheme: best_by_rate([row for row in sweep.finished if row["scheme"] == scheme])
        for scheme in schemes
    }
    if all(rates == [None] for rates in (list(rows) for rows in chosen.values())):
        return {name: [] for name in FIGURES}  # nothing has a u
    return {
        name: [_series(list(rows.values()), figure) for rows in chosen.values()]
        for name, figure in FIGURES.items()
    }


def best_by_rate(rows: list[Row]) -> dict[float | None, Row]:
    """For each u the row with the lowest validation loss; `rows` are sorted by it."""
    found: dict[float | None, Row] = {}
    for row in rows:
        found.setdefault(row["settings"].get(RATE), row)
    return dict(sorted(found.items(), key=lambda item: (item[0] is not None, item[0] or 0.0)))


def _series(rows: list[Row], figure: str) -> dict[str, Any]:
    return {
        "label": escape(rows[0]["label"]),
        "x": [row["settings"].get(RATE) for row in rows],
        "y": [round(row[figure], 5) for row in rows],
        "spread": [
            None if row[f"{figure}_spread"] is None else round(row[f"{figure}_spread"], 5)
            for row in rows
        ],
        "setting": [escape(setting(row)) for row in rows],
    }


def tables(sweep: Sweep) -> dict[str, str]:
    """Each figure's data, and all settings, as CSV."""
    columns = ("validation_loss", "imbalance", "max_violation", "train_loss", "seconds")
    heading = ["scheme", *sweep.axes, "trials", "finished"]
    heading += [f"{name}{kind}" for name in columns for kind in ("", "_spread")]
    rows = [
        [
            row["label"],
            *(row["settings"].get(key) for key in sweep.axes),
            row["trials"],
            row["finished"],
        ]
        + [row[f"{name}{kind}"] for name in columns for kind in ("", "_spread")]
        for row in sweep.rows
    ]
    chosen = [
        row
        for scheme in dict.fromkeys(row["scheme"] for row in sweep.finished)
        for row in best_by_rate(
            [each for each in sweep.finished if each["scheme"] == scheme]
        ).values()
    ]
    by_rate = {
        name: as_csv(
            ("scheme", "u", figure, "spread", "setting"),
            [
                (r["label"], r["settings"].get(RATE), r[figure], r[f"{figure}_spread"], setting(r))
                for r in chosen
            ],
        )
        for name, figure in FIGURES.items()
    }
    return {**by_rate, "settings": as_csv(heading, rows)}
