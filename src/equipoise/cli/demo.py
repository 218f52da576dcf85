"""`equipoise demo`: a small arena on one stream of skewed, drifting scores."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.cli.lists import add_list_option
from equipoise.cli.progress import progress_bar
from equipoise.cli.verb import Verb, add_json_flag
from equipoise.storage.json_files import json_text
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from equipoise.results.arena import CellResult


def _add_demo_options(parser: argparse.ArgumentParser) -> None:
    add_list_option(
        parser,
        "--balancers",
        alias="--schemes",
        metavar="NAME",
        default=(),
        help="which ones (default: all that set a shift)",
    )
    parser.add_argument(
        "--steps", type=int, default=60, help="batches in the stream (default: %(default)s)"
    )
    parser.add_argument(
        "--tokens", type=int, default=8192, help="tokens in a batch (default: %(default)s)"
    )
    parser.add_argument("--experts", type=int, default=64, help="experts (default: %(default)s)")
    parser.add_argument(
        "--top-k", type=int, default=6, help="experts each token takes (default: %(default)s)"
    )
    parser.add_argument(
        "--drift",
        type=float,
        default=0.005,
        help="how fast the experts' popularity wanders (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the stream (default: %(default)s)")
    add_json_flag(parser)


def _run_demo_verb(options: argparse.Namespace) -> None:
    from equipoise import demo
    from equipoise.cli.arena import show_diverged

    if not options.json:
        import_optional("rich", extra="report")
    with progress_bar("balancers") as advance:
        results = demo(
            options.balancers,
            steps=options.steps,
            tokens=options.tokens,
            experts=options.experts,
            top_k=options.top_k,
            drift=options.drift,
            seed=options.seed,
            on_progress=advance,
        )
    if options.json:
        print(json_text([_demo_row(row) for row in results.rows]))
    else:
        _show_demo(options, results.rows)
    show_diverged(results)


def _demo_row(result: CellResult) -> dict[str, object]:
    """What --json prints; the names are older than the arena's."""
    return {
        "balancer": result.balancer,
        "first_imbalance": result.imbalance[0],
        "final_imbalance": result.steady_imbalance,
        "over_floor": result.over_floor,
        "final_max_violation": result.steady_max_violation,
        "steps_to_floor": result.steps_to_floor,
    }


def _show_demo(options: argparse.Namespace, rows: Sequence[CellResult]) -> None:
    from rich.console import Console

    from equipoise.cli.arena import LEGEND, cell_table

    console = Console()
    console.print(
        f"{options.steps} batches of {options.tokens:,} tokens; each takes {options.top_k} of "
        f"{options.experts} experts. Some experts are more popular than others, and that drifts by "
        f"{options.drift} a step.\n\nHow uneven the experts' loads are, with each balancer's own "
        "rate:"
    )
    if rows:
        console.print(cell_table(rows))
    console.print(LEGEND)


DEMO = Verb(
    "demo",
    help="the balancers at work on a stream of skewed, drifting scores",
    description="Route a stream of skewed, drifting scores with every balancer and compare how "
    "even the loads become. `equipoise arena` has more streams, and tries several rates.",
    examples=(
        "equipoise demo",
        "equipoise demo --drift 0.02 --balancers deepseek quantile",
        "equipoise demo --steps 50 --json > demo.json",
    ),
    add_options=_add_demo_options,
    run=_run_demo_verb,
    extra="report",
)
