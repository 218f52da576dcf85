"""The page of an arena: every balancer and rate on the same streams, as one HTML file.

    equipoise arena drift --page drift.html         at once
    equipoise report runs/arena                     from the folder of `equipoise arena --out runs/arena`

Built as the page of a comparison is (page.py): it holds everything, and without JavaScript answer
and tables still read.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from equipoise.report.arena.answer import LEVEL, answer, is_level, standings
from equipoise.report.arena.figures import figures, tables
from equipoise.report.frame import fill, number, save
from equipoise.results.arena import ArenaResults, CellResult, load_arena

COLUMNS: Mapping[str, tuple[str, str]] = {
    "rate": ("rate", "{:g}"),
    "steady imbalance": ("steady_imbalance", "{:.4f}"),
    "x floor": ("over_floor", "{:.2f}"),
    "MaxVio": ("steady_max_violation", "{:.3f}"),
    "steps to 2x floor": ("steps_to_floor", "{}"),
    "affinity": ("affinity_kept", "{:.4f}"),
    "switched": ("switched", "{:.1%}"),
    "idle": ("idle_share", "{:.1%}"),
}


def report_arena(folder: str | Path, out: str | Path | None = None) -> Path:
    """The page of an arena's folder, by default report.html in it."""
    return write_page(load_arena(Path(folder)), Path(out) if out else Path(folder) / "report.html")


def write_page(cells: ArenaResults, path: Path) -> Path:
    """Write the page, and each figure's data beside it as CSV."""
    sheets = tables(cells)
    return save(path, page(cells, sheets), sheets)


def page(cells: ArenaResults, sheets: dict[str, str]) -> str:
    """The page's text: a pure function of the cells."""
    values = {
        "title": escape(f"equipoise arena: {cells.title}"),
        "answer": escape(answer(cells)),
        "level": f"{LEVEL:.0%}",
        "best": best_table(cells),
        "cells": cells_table(cells),
    }
    return fill("arena", values, figures(cells), sheets)


def best_table(cells: ArenaResults) -> str:
    """Streams down, balancers across: how near each comes to the floor at its best rate, and on how
    many it is in front.
    """
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("stream", *cells.balancers))
    body = []
    for stream in cells.streams:
        rows = cells.best_rates(stream)
        found = {row.balancer: _standing(row, rows) for row in rows}
        body.append(
            [
                "<tr>",
                f"<td>{escape(stream)}</td>",
                *(found.get(name, "<td>-</td>") for name in cells.balancers),
            ]
        )
    if len(cells.streams) > 1:
        counted = {each.balancer: each for each in standings(cells)}
        ranks = [counted[name] for name in cells.balancers]
        sums = {"mean x floor": [number(each.over_floor, "{:.2f}") for each in ranks]}
        sums["streams in front"] = [str(each.level) for each in ranks]
        body += [
            ["<tr class=sum>", *(f"<td>{value}</td>" for value in (name, *line))]
            for name, line in sums.items()
        ]
    lines = "".join(f"{''.join(line)}</tr>" for line in body)
    return (
        "<div class=wide><table "
        f"id=best><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def cells_table(cells: ArenaResults) -> str:
    """Every cell; headings become buttons that sort, and rows are shown by stream, where there is
    JavaScript.
    """
    names = ("balancer", *COLUMNS, "stream")
    heads = "".join(f"<th>{escape(name)}</th>" for name in names)
    numbers = {name: place for place, name in enumerate(cells.streams)}
    body = "".join(_cell_row(row, numbers[row.stream]) for row in cells.rows)
    return (
        "<div class=wide "
        f"id=arena-cells><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell_row(row: CellResult, stream: int) -> str:
    values = "".join(
        f'<td data-value="{"" if getattr(row, name) is None else getattr(row, name)}">{number(getattr(row, name), form)}</td>'
        for name, form in COLUMNS.values()
    )
    return (
        "<tr "
        f'data-stream="{stream}"><td>{escape(row.balancer)}</td>{values}<td>{escape(row.stream)}</td></tr>'
    )


def _standing(row: CellResult, rows: list[CellResult]) -> str:
    shown = f"{row.steady_imbalance:.4f}" if row.over_floor is None else f"{row.over_floor:.2f}"
    rate = "" if row.rate is None else f"<small>{row.rate:g}</small>"
    kind = "good" if is_level(row, rows) else "plain"
    told: Any = f"imbalance {row.steady_imbalance:.4f}, affinity {row.affinity_kept:.4f}"
    return f'<td class={kind} title="{told}">{shown}{rate}</td>'
