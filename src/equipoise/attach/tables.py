"""Tables a person can read, as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.attach.count.balanced_router import BalancedRouter
from equipoise.attach.find.routers import LeftAlone, dtype_name

_SCORE_LABELS = {None: "?", "identity": "none"}


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as they need; numbers to the right."""
    cells = [list(map(str, header)), *(list(map(_format_cell, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    right = [
        bool(rows) and all(isinstance(row[column], int | float) for row in rows)
        for column in range(len(header))
    ]
    lines = [
        " ".join(
            cell.rjust(width) if left else cell.ljust(width)
            for cell, width, left in zip(row, widths, right)
        ).rstrip()
        for row in cells
    ]
    # as the command line's tables: one space between columns, a rule below the head
    return "\n".join([lines[0], "─" * (sum(widths) + len(widths) - 1), *lines[1:]])


def _format_cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def found_table(routers: Sequence[BalancedRouter], left_alone: Sequence[LeftAlone]) -> str:
    """What was found: every router, and where its bias is."""
    rows = []
    for router in routers:
        spec, bias = router.found.spec, router.found.bias
        groups = "-" if spec.groups is None else f"{spec.groups.keep} of {spec.groups.number}"
        where = "none: our top-K shifts it" if bias is None else f"{spec.bias} ({bias.where})"
        dtype = dtype_name(router.applied_shift.dtype if bias is None else bias.dtype)
        shift = router.applied_shift
        mean, spread = float(shift.mean()), float(shift.max() - shift.min())
        score = _SCORE_LABELS.get(spec.score, spec.score)
        rows.append(
            [router.name, spec.num_experts, spec.top_k, groups, score, where, dtype, mean, spread]
        )
    header = ["layer", "experts", "top-k", "groups", "score", "bias", "dtype", "mean", "spread"]
    lines = [
        text_table(header, rows),
        *(f"left alone: {name} ({reason})" for name, reason in left_alone),
    ]
    frozen = [router.name for router in routers if router.frozen]
    if frozen and len(frozen) < len(routers):
        lines.append(f"not moved, since nothing in their layers trains: {', '.join(frozen)}")
    return "\n".join(lines)
