"""A sweep as tables on the terminal: the best setting of each scheme, all settings, and what
failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equipoise.storage.optional import import_optional

COLUMNS = {
    "loss": ("validation_loss", "{:.4f}"),
    "imbal.": ("imbalance", "{:.4f}"),
    "MaxVio": ("max_violation", "{:.3f}"),
}
SHORT = {"update_rate": "u", "learning_rate": "lr", "weight_decay": "wd"}


def show(found: dict[str, Any]) -> None:
    import_optional("rich", extra="train")
    from rich.console import Console

    console = Console()
    keys = axes(found["rows"])
    if found["rows"]:
        console.print(_table("All settings, by validation loss", keys, found["rows"]))
    if found["best"]:
        console.print(_table("The best of each scheme", keys, found["best"]))
    for row in found["best"]:
        if row["at_the_end"]:
            ends = ", ".join(SHORT.get(key, key) for key in row["at_the_end"])
            console.print(
                f"{row['label']}: {ends} at an end of what was tried; better may lie beyond",
                markup=False,
            )
    for each in found["failed"]:
        console.print(
            f"FAILED {each['trial']}: {last_line(each['error'])}", markup=False, highlight=False
        )


def axes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Settings that have a column: the scheme's own stand in the first one."""
    return [
        key
        for key in dict.fromkeys(key for row in rows for key in row["settings"])
        if key != "balancer"
    ]


def cells(row: dict[str, Any], keys: Sequence[str]) -> list[str]:
    count = (
        ""
        if row["finished"] == row["trials"]
        else f" ({row['finished']} of {row['trials']} finished)"
    )
    settings = [written(row["settings"].get(key)) for key in keys]
    return [
        row["label"] + count,
        *settings,
        *(_spread(row, name, form) for name, form in COLUMNS.values()),
    ]


def written(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def last_line(error: str) -> str:
    """What a person wants to read first: the training's last words, and how it ended."""
    lines = [line for line in error.splitlines() if line.strip()]
    return " ".join(lines[-2:])


def _table(title: str, keys: Sequence[str], rows: Sequence[dict[str, Any]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=title, box=None, padding=(0, 0, 0, 1))
    for name in ("scheme", *(SHORT.get(key, key) for key in keys), *COLUMNS):
        made.add_column(escape(name), justify="left" if name == "scheme" else "right")
    for row in rows:
        made.add_row(*(escape(cell) for cell in cells(row, keys)))
    return made


def _spread(row: dict[str, Any], name: str, form: str) -> str:
    if row[name] is None:
        return "-"
    spread = row[f"{name}_spread"]
    return form.format(row[name]) + ("" if spread is None else " ± " + form.format(spread))
