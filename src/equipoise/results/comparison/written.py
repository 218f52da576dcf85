"""written: the tables of a comparison as lines of cells, for terminal, page and Markdown, and as
Markdown and CSV.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from equipoise.results.comparison.answer import answer, rule
from equipoise.results.comparison.columns import COLUMNS, DECIDING, Column
from equipoise.results.comparison.differences import Row, against, differences
from equipoise.results.comparison.rows import Results


def label(row: Row) -> str:
    return row["label"] + (f" ({len(row['failed'])} failed)" if row["failed"] else "")


def change_cells(
    rows: Sequence[Row], columns: Sequence[Column]
) -> list[tuple[Row, list[tuple[str, bool | None]]]]:
    """For each scheme but the one compared with: its differences, and whether each is real (None:
    no interval).
    """
    base, found = against(rows), {column.key: differences(rows, column.key) for column in columns}
    lines = []
    for row in rows:
        if row is base or not row["seeds"]:
            continue
        cells: list[tuple[str, bool | None]] = []
        for column in columns:
            each = found[column.key].get(row["name"])
            if each is None:
                cells.append(("-", None))
            else:
                star = "*" if each.real else ""
                cells.append(
                    (
                        column.change(each.mean, each.half) + star,
                        None if each.half is None else each.real,
                    )
                )
        lines.append((row, cells))
    return lines


def change_heading(column: Column, *, short: bool = False) -> str:
    name, between = (column.short, "\n") if short else (column.name, " ")
    return f"{name}{between}({column.unit})" if column.unit else name


def markdown(results: Results) -> str:
    """The answer, the table and the differences, for a README."""
    rows = results.rows
    columns = DECIDING
    parts = [
        answer(results),
        _pipes(["scheme", *(each.name for each in columns)], _table(rows, columns)),
    ]
    base, lines = against(rows), change_cells(rows, columns)
    if base is not None and lines:
        changes = [[label(row), *(text for text, _ in cells)] for row, cells in lines]
        heads = [f"less {base['label']}", *(change_heading(each) for each in columns)]
        parts += [_pipes(heads, changes), rule(results)]
    return "\n\n".join(parts)


def table_csv(rows: Sequence[Row]) -> str:
    """A line for each scheme and seed: every figure as it was measured."""
    keys = [column.key for column in COLUMNS] + ["floor", "seconds"]
    seeds = {
        row["name"]: sorted({seed for found in row["values"].values() for seed in found}, key=int)
        for row in rows
    }
    lines = [
        (row["label"], seed, *(row["values"].get(key, {}).get(seed) for key in keys))
        for row in rows
        for seed in seeds[row["name"]]
    ]
    return as_csv(("scheme", "seed", *keys), lines)


def differences_csv(rows: Sequence[Row]) -> str:
    base = against(rows)
    labels = {row["name"]: row["label"] for row in rows}
    lines = []
    for column in COLUMNS:
        for name, each in differences(rows, column.key).items():
            low, high = each.interval or (None, None)
            chance = (len(each.seeds), each.mean, low, high, each.chance, int(each.real))
            lines.append((column.key, labels[name], base["label"] if base else "", *chance))
    return as_csv(("figure", "scheme", "less", "seeds", "mean", "low", "high", "p", "real"), lines)


def as_csv(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    return text.getvalue()


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> list[list[str]]:
    return [[label(row), *(column.cell(row, spread=True) for column in columns)] for row in rows]


def _pipes(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
