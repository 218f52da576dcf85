"""The page of an arena: every balancer and rate on the same streams, as one HTML file.

    equipoise arena drift --page drift.html     at once
    equipoise report runs/arena                 from the folder of `equipoise arena --out`

Built as the page of a comparison is: it holds everything, and without JavaScript answer and tables
still read.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from equipoise.report.arena.answer import LEVEL_SHARE, arena_answer, is_level, standings
from equipoise.report.arena.figures import arena_figures, arena_sheets
from equipoise.report.frame import fill_page, html_table, save_page, wide_table
from equipoise.report.sheets import Sheets
from equipoise.results.arena import ArenaResults, CellResult, load_arena
from equipoise.results.columns import ARENA_COLUMNS, Column


def report_arena(folder: str | Path, out: str | Path | None = None) -> Path:
    """The page of an arena's folder, by default report.html in it."""
    place = Path(out) if out else Path(folder) / "report.html"
    return write_arena_page(load_arena(Path(folder)), place)


def write_arena_page(cells: ArenaResults, path: Path) -> Path:
    """Write the page, and each figure's data beside it as CSV."""
    sheets = arena_sheets(cells)
    return save_page(path, arena_page(cells, sheets), sheets)


def arena_page(cells: ArenaResults, sheets: Sheets) -> str:
    """The page's text: a pure function of the cells."""
    values = {
        "title": escape(f"equipoise arena: {cells.title}"),
        "answer": escape(arena_answer(cells)),
        "level": f"{LEVEL_SHARE:.0%}",
        "best": best_rates_table(cells),
        "cells": cells_table(cells),
    }
    return fill_page("arena", values, arena_figures(cells), sheets, cells.balancers)


def best_rates_table(cells: ArenaResults) -> str:
    """Streams down, balancers across: how near each comes to the floor at its best rate, and on how
    many it is in front.
    """
    body = []
    for stream in cells.streams:
        rows = cells.best_rates(stream)
        found = {row.balancer: _best_rate_cell(row, rows) for row in rows}
        line = "".join(found.get(name, "<td>-</td>") for name in cells.balancers)
        body.append(f"<tr><td>{escape(stream)}</td>{line}</tr>")
    if len(cells.streams) > 1:
        body += _sum_rows(cells)
    return wide_table(("stream", *cells.balancers), "".join(body), "best")


def cells_table(cells: ArenaResults) -> str:
    """Every cell; headings become buttons that sort, and rows are shown by stream, where there is
    JavaScript.
    """
    heading = ("balancer", *(column.name for column in ARENA_COLUMNS), "stream")
    numbers = {name: place for place, name in enumerate(cells.streams)}
    body = "".join(_cell_row(row, numbers[row.stream]) for row in cells.rows)
    return f"<div class=wide id=arena-cells>{html_table(heading, body)}</div>"


def _sum_rows(cells: ArenaResults) -> list[str]:
    """Below the table of best rates: what holds over all streams."""
    counted = {each.balancer: each for each in standings(cells)}
    ranks = [counted[name] for name in cells.balancers]
    means = ["-" if each.over_floor is None else f"{each.over_floor:.2f}" for each in ranks]
    sums = {"mean x floor": means, "streams in front": [str(each.level) for each in ranks]}
    return [
        f"<tr class=sum>{''.join(f'<td>{value}</td>' for value in (name, *line))}</tr>"
        for name, line in sums.items()
    ]


def _cell_row(row: CellResult, stream: int) -> str:
    values = "".join(_value_cell(column, getattr(row, column.key)) for column in ARENA_COLUMNS)
    first, last = escape(row.balancer), escape(row.stream)
    return f'<tr data-stream="{stream}"><td>{first}</td>{values}<td>{last}</td></tr>'


def _value_cell(column: Column, value: float | None) -> str:
    """With the whole number beside the written one, to sort by."""
    return f'<td data-value="{"" if value is None else value}">{column.text(value)}</td>'


def _best_rate_cell(row: CellResult, rows: list[CellResult]) -> str:
    level, over = f"{row.steady_imbalance:.4f}", row.over_floor
    shown = level if over is None else f"{over:.2f}"
    rate = "" if row.rate is None else f"<small>{row.rate:g}</small>"
    kind = "good" if is_level(row, rows) else "plain"
    title = f"imbalance {level}, affinity {row.affinity_kept:.4f}"
    return f'<td class={kind} title="{title}">{shown}{rate}</td>'
