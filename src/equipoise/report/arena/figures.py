"""The data of an arena's figures: what arena.js draws, and the same as CSV.

For every stream: the frontier of balance against affinity, with a point for each cell; and what
each cell left over time.
"""

from __future__ import annotations

from html import escape
from typing import Any

from equipoise.results.arena import ArenaResults, CellResult
from equipoise.results.comparison.written import as_csv

CELLS = (
    "stream", "balancer", "rate", "steady_imbalance", "over_floor", "steady_max_violation", "steps_to_floor", "affinity_kept",
    "switched", "idle_share", "floor", "lag_one",
)  # fmt: skip


def figures(cells: ArenaResults) -> dict[str, Any]:
    """Plotly reads a little HTML in its texts, so names are escaped here."""
    return {
        "balancers": [escape(name) for name in cells.balancers],
        "streams": [_stream(cells, name) for name in cells.streams],
    }


def tables(cells: ArenaResults) -> dict[str, str]:
    """Each figure's data as CSV, and the table of all cells."""
    best = {id(row) for name in cells.streams for row in frontier(cells.of_stream(name))}
    points = [
        (
            *(
                getattr(row, name)
                for name in ("stream", "balancer", "rate", "steady_imbalance", "affinity_kept")
            ),
            int(id(row) in best),
        )
        for row in cells.rows
    ]
    series = [
        (row.stream, row.balancer, row.rate, step, *pair)
        for row in cells.rows
        for step, pair in enumerate(zip(row.imbalance, row.max_violation, strict=True))
    ]
    return {
        "arena-frontier": as_csv(
            ("stream", "balancer", "rate", "steady_imbalance", "affinity_kept", "on the frontier"),
            points,
        ),
        "arena-time": as_csv(
            ("stream", "balancer", "rate", "step", "imbalance", "max_violation"), series
        ),
        "arena-cells": as_csv(
            CELLS, ([getattr(row, name) for name in CELLS] for row in cells.rows)
        ),
    }


def frontier(rows: list[CellResult]) -> list[CellResult]:
    """The cells that no other beats in both balance and affinity, the most even first."""
    kept: list[CellResult] = []
    for row in sorted(rows, key=lambda row: (row.steady_imbalance, -row.affinity_kept)):
        if not kept or row.affinity_kept > kept[-1].affinity_kept:
            kept.append(row)
    return kept


def _stream(cells: ArenaResults, name: str) -> dict[str, Any]:
    rows = cells.of_stream(name)
    best = {id(row) for row in cells.best_rates(name)}
    return {
        "name": escape(name),
        "floor": _short(rows[0].floor),
        "lag": None if rows[0].lag_one is None else _short(rows[0].lag_one),
        "cells": [
            {
                "balancer": cells.balancers.index(row.balancer),
                "rate": row.rate,
                "best": id(row) in best,
                "x": _short(row.steady_imbalance),
                "y": _short(row.affinity_kept),
                "imbalance": [_short(value) for value in row.imbalance],
                "violation": [_short(value) for value in row.max_violation],
            }
            for row in rows
        ],
        "frontier": [
            [_short(row.steady_imbalance), _short(row.affinity_kept)] for row in frontier(rows)
        ],
    }


def _short(value: float) -> float:
    """Five digits are more than a figure shows."""
    return float(f"{value:.5g}")
