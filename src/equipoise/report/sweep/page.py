"""The page of a sweep: the best setting of each scheme, loss and imbalance against u, all settings,
and what failed.

Built as the page of a comparison is (page.py): it holds everything, and without JavaScript answer
and tables still read.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from equipoise.report.frame import fill, save, with_spread
from equipoise.report.sweep.answer import answer
from equipoise.report.sweep.figures import figures, tables
from equipoise.report.sweep.read import SHORT, Row, Sweep, read_sweep, written

COLUMNS = {
    "validation loss": ("validation_loss", "{:.4f}"),
    "imbalance": ("imbalance", "{:.4f}"),
    "MaxVio": ("max_violation", "{:.3f}"),
}


def report_sweep(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page, by default report.html in the folder, and each figure's data beside it as
    CSV.
    """
    sweep, path = read_sweep(Path(folder)), Path(out) if out else Path(folder) / "report.html"
    sheets = tables(sweep)
    return save(path, page(sweep, sheets), sheets)


def page(sweep: Sweep, sheets: dict[str, str]) -> str:
    """The page's text: a pure function of the sweep."""
    values = {
        "title": escape(f"equipoise sweep: {sweep.title}"),
        "answer": escape(answer(sweep)),
        "best": table("best", sweep, sweep.best),
        "settings": table("settings", sweep, sweep.rows),
        "failed": failures(sweep.failed),
        "common": escape(
            ", ".join(
                f"{SHORT.get(key, key)} {written(sweep.common.get(key))}" for key in _told(sweep)
            )
        ),
    }
    return fill("sweep", values, figures(sweep), sheets)


def table(name: str, sweep: Sweep, rows: Iterable[Row]) -> str:
    heads = ["scheme", *(SHORT.get(key, key) for key in sweep.axes), *COLUMNS, "finished"]
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(sweep, row))}</tr>"
        for row in rows
    )
    heading = "".join(f"<th>{escape(each)}</th>" for each in heads)
    return (
        "<div class=wide><table "
        f"id={name}><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def failures(failed: list[Row]) -> str:
    if not failed:
        return "<p>None.</p>"
    body = "".join(
        f"<dt>{escape(each['trial'])}</dt><dd><pre>{escape(each['error'])}</pre></dd>"
        for each in failed
    )
    return f"<dl id=failed>{body}</dl>"


def _cells(sweep: Sweep, row: Row) -> list[str]:
    settings = [written(row["settings"].get(key)) for key in sweep.axes]
    figures = [with_spread(row, name, form) for name, form in COLUMNS.values()]
    return [row["label"], *settings, *figures, f"{row['finished']} of {row['trials']}"]


def _told(sweep: Sweep) -> list[str]:
    """The settings in common that a reader asks for first."""
    first = ("preset", "data", "steps", "batch_size", "learning_rate", "weight_decay", "seed")
    return [key for key in first if key in sweep.common]
