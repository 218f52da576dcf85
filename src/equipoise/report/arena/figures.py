"""The data of an arena's figures: what arena.js draws, and the same as CSV.

For every stream: the frontier of balance against affinity, with a point for each cell; and what
each cell left over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypedDict

from equipoise.report.sheets import Sheets, csv_sheet
from equipoise.results.arena import ArenaResults, CellResult
from equipoise.results.comparison.condense import round_figure

CELL_COLUMNS = (
    "stream",
    "balancer",
    "rate",
    "steady_imbalance",
    "over_floor",
    "steady_max_violation",
    "steps_to_floor",
    "affinity_kept",
    "switched",
    "idle_share",
    "floor",
    "lag_one",
    "dropped_share",
    "sequence_violation",
)
"""of the CSV of all cells"""


class CellPoint(TypedDict):
    """A cell in both figures."""

    balancer: int
    """its place among the balancers"""
    rate: float | None
    best: bool
    """whether its rate is the balancer's best on this stream"""
    x: float | None
    y: float | None
    imbalance: list[float | None]
    violation: list[float | None]


class StreamFigure(TypedDict):
    name: str
    floor: float | None
    lag: float | None
    cells: list[CellPoint]
    frontier: list[tuple[float | None, float | None]]


class ArenaFigures(TypedDict):
    """Plotly reads a little HTML in its texts, so names are escaped."""

    balancers: list[str]
    streams: list[StreamFigure]


def arena_figures(cells: ArenaResults) -> ArenaFigures:
    return {
        "balancers": [escape(name) for name in cells.balancers],
        "streams": [_stream_figure(cells, name) for name in cells.streams],
    }


def arena_sheets(cells: ArenaResults) -> Sheets:
    """Each figure's data as CSV, and the table of all cells."""
    names = ("stream", "balancer", "rate", "steady_imbalance", "affinity_kept")
    best = {id(row) for name in cells.streams for row in frontier(cells.of_stream(name))}
    points = [(*(getattr(row, name) for name in names), int(id(row) in best)) for row in cells.rows]
    series = [
        (row.stream, row.balancer, row.rate, step, *pair)
        for row in cells.rows
        for step, pair in enumerate(zip(row.imbalance, row.max_violation, strict=True))
    ]
    every = [[getattr(row, name) for name in CELL_COLUMNS] for row in cells.rows]
    return {
        "arena-frontier": csv_sheet((*names, "on the frontier"), points),
        "arena-time": csv_sheet((*names[:3], "step", "imbalance", "max_violation"), series),
        "arena-cells": csv_sheet(CELL_COLUMNS, every),
    }


def frontier(rows: Sequence[CellResult]) -> list[CellResult]:
    """The cells that no other beats in both balance and affinity, the most even first."""
    kept: list[CellResult] = []
    for row in sorted(rows, key=lambda row: (row.steady_imbalance, -row.affinity_kept)):
        if not kept or row.affinity_kept > kept[-1].affinity_kept:
            kept.append(row)
    return kept


def _stream_figure(cells: ArenaResults, name: str) -> StreamFigure:
    rows = cells.of_stream(name)
    best = {id(row) for row in cells.best_rates(name)}
    places = {balancer: place for place, balancer in enumerate(cells.balancers)}
    return {
        "name": escape(name),
        "floor": round_figure(rows[0].floor),
        "lag": round_figure(rows[0].lag_one),
        "cells": [_cell_point(row, places[row.balancer], id(row) in best) for row in rows],
        "frontier": [
            (round_figure(row.steady_imbalance), round_figure(row.affinity_kept))
            for row in frontier(rows)
        ],
    }


def _cell_point(row: CellResult, balancer: int, best: bool) -> CellPoint:
    return {
        "balancer": balancer,
        "rate": row.rate,
        "best": best,
        "x": round_figure(row.steady_imbalance),
        "y": round_figure(row.affinity_kept),
        "imbalance": [round_figure(value) for value in row.imbalance],
        "violation": [round_figure(value) for value in row.max_violation],
    }
