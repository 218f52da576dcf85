"""Tables a person can read, as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.attach.count.balanced_router import Seat
from equipoise.attach.find.routers import LeftAlone, dtype_name

_SCORES = {None: "?", "identity": "none"}


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they need; numbers to the right."""
    cells = [list(map(str, header)), *(list(map(_shown, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    right = [
        bool(rows) and all(isinstance(row[column], int | float) for row in rows)
        for column in range(len(header))
    ]
    lines = [
        "  ".join(
            cell.rjust(width) if left else cell.ljust(width)
            for cell, width, left in zip(row, widths, right)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def found_table(seats: Sequence[Seat], left_alone: Sequence[LeftAlone]) -> str:
    """What was found: every router, and where its bias is."""
    rows = []
    for seat in seats:
        habit, bias = seat.router.habit, seat.router.bias
        groups = "-" if habit.groups is None else f"{habit.groups.keep} of {habit.groups.number}"
        where = "none: our top-K shifts it" if bias is None else f"{habit.bias} ({bias.where})"
        dtype = dtype_name(seat.offered.dtype if bias is None else bias.dtype)
        mean, spread = float(seat.offered.mean()), float(seat.offered.max() - seat.offered.min())
        score = _SCORES.get(habit.score, habit.score)
        rows.append(
            [seat.name, habit.num_experts, habit.top_k, groups, score, where, dtype, mean, spread]
        )
    header = ["layer", "experts", "top-k", "groups", "score", "bias", "dtype", "mean", "spread"]
    lines = [
        table(header, rows),
        *(f"left alone: {name} ({reason})" for name, reason in left_alone),
    ]
    frozen = [seat.name for seat in seats if seat.frozen]
    if frozen and len(frozen) < len(seats):
        lines.append(f"not moved, since nothing in their layers trains: {', '.join(frozen)}")
    return "\n".join(lines)
