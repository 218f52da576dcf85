"""`equipoise compare`: the same training under every scheme, as a table and a page."""

from __future__ import annotations

import argparse
from pathlib import Path

from equipoise.cli.lists import add_list_option
from equipoise.cli.verb import Verb, add_json_flag, add_workers_option, given_options
from equipoise.storage.json_files import json_text


def _add_compare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="results", metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--preset", default="tiny", help="of every training (default: %(default)s)")
    add_list_option(
        parser,
        "--schemes",
        alias="--balancers",
        metavar="NAME",
        help="which ones (default: all eight)",
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many (default: %(default)s)")
    add_workers_option(
        parser, "trainings side by side (default: a core each, at most 2)", old="--at-once"
    )
    parser.add_argument("--steps", type=int, help="instead of the preset's")
    parser.add_argument(
        "--data", metavar="PATH", help="instead of the preset's: docstrings, wikitext-103, or texts"
    )
    parser.add_argument(
        "--settled",
        action="store_true",
        help="evaluate under the settled shift too (docs/how-to.md)",
    )
    parser.add_argument(
        "--search",
        metavar="FOLDER",
        help="of `equipoise sweep paper-tiny`: for the paper's observation on u",
    )
    add_json_flag(parser, "the rows as JSON")


def _run_compare_verb(options: argparse.Namespace) -> None:
    from equipoise import compare

    rows = compare(
        options.out,
        preset=options.preset,
        schemes=options.schemes,
        seeds=options.seeds,
        workers=options.workers,
        settled=options.settled,
        **given_options(options, ("steps", "data")),
    )
    if not rows:
        # not the first rank
        return
    if options.json:
        print(json_text(rows))
    else:
        _print_tables(options)


def _print_tables(options: argparse.Namespace) -> None:
    from equipoise import write_report
    from equipoise.cli.report import judge_observations
    from equipoise.experiments.table import show_comparison
    from equipoise.results.comparison.rows import read_comparison

    found = read_comparison(Path(options.out))
    show_comparison(found)
    if options.preset.startswith("paper") or options.search:
        print(judge_observations(found.rows, options.search))
    print(f"the page: {write_report(options.out).page}")


COMPARE = Verb(
    "compare",
    help="the paper's experiment: the same training under every scheme",
    description="Train under every scheme from the same weights and data, measure each against the "
    "exact optimum, and write a results folder. The same command continues where it was stopped.",
    examples=(
        "equipoise compare --out results",
        "equipoise compare --seeds 3 --schemes none deepseek curvature",
        "equipoise compare --preset paper-tiny --seeds 3 --workers 2 --out results-paper",
        "torchrun --nproc-per-node 8 -m equipoise compare --preset deepseekmoe-1b --out results",
    ),
    add_options=_add_compare_options,
    run=_run_compare_verb,
    extra="train",
)
