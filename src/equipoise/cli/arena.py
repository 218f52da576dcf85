"""`equipoise arena`: every balancer and rate on the same scores, as tables, JSON or a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.contest_options import add_contest_options, contest_settings
from equipoise.cli.lists import add_list_option
from equipoise.cli.progress import progress_bar
from equipoise.cli.verb import Verb
from equipoise.storage.json_files import json_text
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from rich.table import Table

    from equipoise.results.arena import ArenaResults, CellResult

LEGEND = (
    "Steady: mean imbalance of the last third of the steps. Floor: what chance alone leaves. "
    "Steps: until within 2x the floor. Affinity: chosen scores over those of the exact optimum, "
    "above 1 where loads are uneven. Idle: device time "
    "lost waiting. Regret: what the shifts lost against the best one that stays, of the optimum's "
    "scores; below 0 where following did better. In a replay the router does not react; in a "
    "training it does."
)
NOT_ON_TERMINALS = ("switched", "dynamic_regret", "dropped_share", "sequence_violation")


def _add_arena_options(parser: argparse.ArgumentParser) -> None:
    add_list_option(
        parser,
        "streams",
        default=(),
        metavar="STREAM",
        help="a built-in one, or a run or a trace: FOLDER or FOLDER:LAYER",
    )
    parser.add_argument(
        "--tally-every",
        type=int,
        default=1,
        metavar="N",
        help="rules learn from every N-th token only",
    )
    parser.add_argument(
        "--every-rate", action="store_true", help="show every rate in the table, not only the best"
    )
    parser.add_argument(
        "--page",
        metavar="FILE",
        help="write an HTML page too: the frontier, all cells, all over time",
    )
    add_contest_options(parser, "seven causal ones")


def _run_arena_verb(options: argparse.Namespace) -> None:
    from equipoise import run_arena

    if options.page:
        check_page_path(options.page)
    if not options.json:
        import_optional("rich", extra="report")
    with progress_bar("cells") as advance:
        results = run_arena(
            options.streams,
            tally_every=options.tally_every,
            on_progress=advance,
            **contest_settings(options),
        )
    if options.json:
        cells = [cell.summary_row() for cell in results.rows]
        cells += [cell.summary_row() for cell in results.diverged]
        print(json_text(cells))
    else:
        _show_cells(results, options.every_rate)
    show_diverged(results)
    if options.page and not results.rows:
        raise ValueError("no cell has figures: there is nothing to draw on a page")
    if options.page:
        _show_page(options, results)


def check_page_path(path: str) -> None:
    """What would keep the page from being written is reported before minutes of work."""
    import_optional("plotly.offline", extra="report")
    if Path(path).is_dir():
        raise ValueError(
            f"{path} is a folder: --page takes the name of a file, such as "
            f"{Path(path) / 'arena.html'}"
        )
    Path(path).parent.mkdir(parents=True, exist_ok=True)


def _show_page(options: argparse.Namespace, results: ArenaResults) -> None:
    from equipoise.report.arena.page import write_arena_page

    path = write_arena_page(results, Path(options.page))
    print(f"the page: {path}", file=sys.stderr if options.json else sys.stdout)


def _show_cells(results: ArenaResults, every_rate: bool) -> None:
    """A table for every stream."""
    from rich.console import Console

    console = Console()
    for name in results.streams:
        cells = results.of_stream(name) if every_rate else results.best_rates(name)
        console.print(cell_table(cells))
    best = "Each rule at the best of the rates tried (--every-rate shows all). "
    console.print(("" if every_rate else best) + LEGEND)


def show_diverged(results: ArenaResults) -> None:
    """On stderr, a line for each cell without figures."""
    for cell in results.diverged:
        print(f"equipoise: {cell.sentence()}", file=sys.stderr)


def cell_table(cells: Sequence[CellResult]) -> Table:
    """The cells of one stream, the most even one first."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from equipoise.results.columns import ARENA_COLUMNS

    # the page and --json have them all; so many fit 80 columns
    columns = [each for each in ARENA_COLUMNS if each.key not in NOT_ON_TERMINALS]
    lag = "unknown under groups" if cells[0].lag_one is None else f"{cells[0].lag_one:.4f}"
    # a folder or a layer may have any name: brackets in it are no markup
    name = escape(cells[0].stream)
    # as narrow as possible: a figure that does not fit a terminal of 80 columns would be cut
    table = Table(
        title=f"{name}: floor {cells[0].floor:.4f}, the batch before's optimum {lag}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("balancer", no_wrap=True)
    for column in columns:
        table.add_column(column.short, justify="right", no_wrap=True)
    best = min(cell.steady_imbalance for cell in cells)
    for cell in sorted(cells, key=lambda cell: cell.steady_imbalance):
        even = cell.steady_imbalance == best
        figures = (column.text(getattr(cell, column.key)) for column in columns)
        table.add_row(cell.balancer, *figures, style="bold green" if even else "")
    return table


ARENA = Verb(
    "arena",
    help="every balancer and rate on the same scores, made or recorded",
    description="Replay streams of scores under every balancer and rate: how even, how fast, and "
    "at what cost.",
    examples=(
        "equipoise arena",
        "equipoise arena drift --balancers deepseek curvature --rates 1e-4 1e-3",
        "equipoise arena runs/a --out runs/arena  # the same command again continues",
        "equipoise arena e256-groups --devices 64 --json > cells.json",
        "equipoise arena drift topics --page arena.html",
    ),
    add_options=_add_arena_options,
    run=_run_arena_verb,
    extra="report",
)
