"""`equipoise advise`: update rates from theory, in a paragraph and a table, or as JSON."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from equipoise.cli.arena import check_page_path
from equipoise.cli.progress import progress_bar
from equipoise.cli.verb import Verb, add_json_flag
from equipoise.storage.json_files import json_text
from equipoise.storage.optional import import_optional
from equipoise.storage.output_path import output_path

if TYPE_CHECKING:
    from equipoise.results.advice import Advice

HEADINGS = ("balancer", "rate", "from", "to", "imbalance", "x chance", "settles", "usual")


def _add_advise_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "stream",
        metavar="TRACE",
        help="a trace: FOLDER, or FOLDER:LAYER for one layer; or a built-in stream",
    )
    parser.add_argument(
        "--steps", type=int, default=1000, metavar="N", help="of the training (default 1000)"
    )
    parser.add_argument(
        "--tokens", type=int, metavar="N", help="in its batches; by default as recorded"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of built-in streams")
    parser.add_argument("--page", metavar="FILE", help="write an HTML page too: forecasts by rate")
    add_json_flag(parser, "the advice as JSON")


def _run_advise_verb(options: argparse.Namespace) -> None:
    from equipoise import advise

    if options.page:
        check_page_path(options.page)
    if not options.json:
        import_optional("rich", extra="report")
    with progress_bar("parts") as advance:
        advice = advise(
            options.stream,
            steps=options.steps,
            tokens=options.tokens,
            seed=options.seed,
            on_progress=advance,
        )
    if options.json:
        print(json_text(dataclasses.asdict(advice) | {"look_ahead": advice.look_ahead}))
    else:
        _show_advice(advice)
    if options.page:
        from equipoise.report.advice.page import write_advice_page

        path = write_advice_page(advice, output_path(options.page))
        print(f"the page: {path}", file=sys.stderr if options.json else sys.stdout)


def _show_advice(advice: Advice) -> None:
    """The paragraph, then a line for each rule."""
    from rich.console import Console

    from equipoise.results.terminal_table import terminal_table

    table = terminal_table(HEADINGS)
    for each in advice.rates:
        table.add_row(
            each.balancer,
            f"{each.rate:.2g}",
            f"{each.low:.2g}",
            f"{each.high:.2g}",
            f"{each.imbalance:.4f}",
            f"{each.over_floor:.2f}",
            f"{each.settles_after:,}",
            f"{each.usual_imbalance:.4f}",
        )
    console = Console()
    console.print(advice.paragraph(), highlight=False, markup=False)
    console.print(table)
    console.print(
        "From, to: as good within a tenth. Imbalance: forecast for the last third of the training. "
        "Settles: steps until it is within "
        "a quarter of that. Usual: what the rule's own default rate would leave.",
        highlight=False,
    )


ADVISE = Verb(
    "advise",
    help="the update rate from theory, from a few recorded batches",
    description="Read a few recorded batches, and say which update rates deepseek, proportional, "
    "inverse and inverse_sqrt should have, and what imbalance to expect. Nothing is trained or "
    "replayed.",
    examples=(
        "equipoise advise drift",
        "equipoise advise runs/a --steps 100000 --page advice.html",
        "equipoise advise scores/a:blocks.1 --tokens 262144 --json",
    ),
    add_options=_add_advise_options,
    run=_run_advise_verb,
    extra="report",
)
