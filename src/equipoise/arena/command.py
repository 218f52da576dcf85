"""`equipoise arena`: the streams, rules and rates that were asked for, and a table of what came of
them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.arena.cells import Cell
from equipoise.arena.contest import contest, plan
from equipoise.arena.streams import catalogue
from equipoise.balancing import method_specs
from equipoise.results.arena import CellResult
from equipoise.storage.optional import import_optional

LEGEND = (
    "Steady: mean imbalance of the last third of the steps. Floor: what chance alone leaves. "
    "Steps: until within 2x the floor. "
    "Affinity: chosen scores over those of the exact optimum, above 1 where loads are uneven. "
    "Switch: tokens an update sends "
    "elsewhere. Idle: device time lost waiting. In a replay the router does not react; in a "
    "training it does."
)


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    streams: Sequence[str] = ()
    balancers: Sequence[str] = ()
    rates: Sequence[float] | None = None
    steps: int | None = None
    tokens: int | None = None
    seed: int = 0
    devices: int | None = None
    tally_every: int = 1
    out: str | None = None
    workers: int | None = None
    as_json: bool = False
    every_rate: bool = False


def run(request: Request) -> list[CellResult]:
    """Run the cells, with a bar if somebody looks, then print."""
    if not request.as_json:
        import_optional("rich", extra="report")
    streams = catalogue.distinct(
        stream
        for name in request.streams or catalogue.DEFAULT
        for stream in catalogue.find(
            name, seed=request.seed, steps=request.steps, tokens=request.tokens
        )
    )
    cells = plan(
        streams,
        request.balancers or [spec.name for spec in method_specs() if spec.arena_default],
        request.rates,
        devices=request.devices,
        tally_every=request.tally_every,
    )
    results = watched(cells, request.out, request.workers)
    if request.as_json:
        print(json.dumps([result.summary_row() for result in results], indent=2))
    else:
        show(results, request.every_rate)
    return results


def watched(cells: Sequence[Cell], out: str | None, workers: int | None) -> list[CellResult]:
    """The contest, with a progress bar on the terminal's error stream."""
    if not sys.stderr.isatty():
        return contest(cells, out=out, workers=workers)
    import_optional("rich", extra="report")
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task("cells", total=len(cells))
        return contest(
            cells, out=out, workers=workers, on_cell=lambda number: bar.advance(job, number)
        )


def best_rates(results: Sequence[CellResult]) -> list[CellResult]:
    """Of every rule on every stream, the rate with the lowest steady imbalance."""
    best: dict[tuple[str, str], CellResult] = {}
    for result in results:
        key = (result.stream, result.balancer)
        if key not in best or result.steady_imbalance < best[key].steady_imbalance:
            best[key] = result
    return list(best.values())


def show(results: Sequence[CellResult], every_rate: bool = False) -> None:
    """A table for every stream."""
    from rich.console import Console

    console = Console()
    shown = list(results) if every_rate else best_rates(results)
    for name in dict.fromkeys(result.stream for result in shown):
        console.print(_table([result for result in shown if result.stream == name]))
    console.print(
        (
            ""
            if every_rate
            else "Each rule at the best of the rates tried (--every-rate shows all). "
        )
        + LEGEND
    )


def _table(rows: Sequence[CellResult]) -> Any:
    from rich import box
    from rich.table import Table

    lag = "unknown under groups" if rows[0].lag_one is None else f"{rows[0].lag_one:.4f}"
    title = f"{rows[0].stream}: floor {rows[0].floor:.4f}, the batch before's optimum {lag}"
    # as narrow as it gets: a figure that does not fit a terminal of 80 columns would be cut
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("balancer", no_wrap=True)
    headings = (
        "rate",
        "steady",
        "x floor",
        "maxvio",
        "steps",
        "affinity",
        "switch",
        "idle",
    )
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    best = min(row.steady_imbalance for row in rows)
    for row in sorted(rows, key=lambda row: row.steady_imbalance):
        table.add_row(
            row.balancer,
            "-" if row.rate is None else f"{row.rate:g}",
            f"{row.steady_imbalance:.4f}",
            "-" if row.over_floor is None else f"{row.over_floor:.2f}",
            f"{row.steady_max_violation:.3f}",
            "-" if row.steps_to_floor is None else str(row.steps_to_floor),
            f"{row.affinity_kept:.4f}",
            f"{row.switched:.1%}",
            f"{row.idle_share:.1%}",
            style="bold green" if row.steady_imbalance == best else "",
        )
    return table
