"""The comparison as a table on the terminal."""

from __future__ import annotations

from typing import Any

from equipoise.extras import require

COLUMNS = {
    "loss": ("validation_loss", "{:.4f}"),
    "imbal.": ("imbalance", "{:.4f}"),
    "MaxVio": ("max_violation", "{:.3f}"),
    "idle": ("idle_share", "{:.1%}"),
    "given up": ("given_up", "{:+.2%}"),
    "dual gap": ("dual_gap", "{:.2%}"),
}


def show(rows: list[dict[str, Any]]) -> None:
    require("rich", extra="train")
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    made = Table(
        title="The same training under every scheme",
        caption="u: for this preset / the paper's; loss and imbalance of the validation set; idle: share of 8 devices' time "
        "spent waiting; given up: affinity against the exact even optimum, below 0 where uneven loads keep more; dual gap: "
        "that plus the price of unevenness",
        box=None,
        padding=(0, 0, 0, 1),
    )
    one_seed = all(row["validation_loss_spread"] is None for row in rows)  # else a spread goes under its mean
    for name in ("scheme", "u", *COLUMNS):
        made.add_column(name, justify="left" if name == "scheme" else "right", no_wrap=one_seed)
    for row in rows:
        made.add_row(*(escape(cell) for cell in cells(row)))
    Console().print(made)


def cells(row: dict[str, Any]) -> list[str]:
    """A row as text. Spreads follow a ±."""
    paper = row["paper"]
    return [
        row["label"] + (f" ({len(row['failed'])} failed)" if row["failed"] else ""),
        f"{_number(row['update_rate'], '{:g}')}/{_number(paper['update_rate'], '{:g}')}",
        *(_spread(row, name, form) for name, form in COLUMNS.values()),
    ]


def _spread(row: dict[str, Any], name: str, form: str) -> str:
    spread = row[f"{name}_spread"]
    return _number(row[name], form) + ("" if spread is None else " ± " + form.replace("+", "").format(spread))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
