"""`equipoise report`: a results folder as one HTML page, Markdown, or pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.cli.verb import Verb


def _add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        help="of `equipoise compare`, `sweep`, `arena --out` or `train`, which may still run; or "
        "the rows.json of a comparison",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="default: report.html in the folder, or rows.html beside rows.json",
    )
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="a comparison: print its tables as Markdown, and draw nothing",
    )
    parser.add_argument(
        "--search",
        metavar="FOLDER",
        help="a comparison: print the paper's seven observations, with this sweep's for u",
    )
    parser.add_argument(
        "--figures", choices=("png", "svg", "pdf"), help="draw them, by a browser on this machine"
    )
    parser.add_argument(
        "--to",
        metavar="FOLDER",
        help="where pictures and their data go (default: figures/ beside the page)",
    )
    parser.add_argument(
        "--price",
        type=float,
        metavar="MONEY",
        help="of a device hour: a comparison's page tells idle time in money too",
    )
    parser.add_argument(
        "--animate",
        metavar="FILE",
        help="draw the loads over the training, and no page: a .gif moves, a .png stands still",
    )


def _run_report_verb(options: argparse.Namespace) -> None:
    from equipoise import write_report

    if options.animate:
        _animate(options)
        return
    if options.markdown or options.search:
        _print_markdown(options)
        return
    written = write_report(
        options.folder, options.out, figures=options.figures, to=options.to, price=options.price
    )
    print("\n".join(map(str, [written.page, *written.pictures])))


def _animate(options: argparse.Namespace) -> None:
    from equipoise.report.animation.loads import animate_loads

    others = ("markdown", "search", "figures", "out", "to", "price")
    if used := [f"--{name}" for name in others if getattr(options, name) not in (None, False)]:
        raise ValueError(f"--animate draws loads and no page: use it without {', '.join(used)}")
    print(animate_loads(options.folder, options.animate))


def _print_markdown(options: argparse.Namespace) -> None:
    from equipoise.report import as_markdown
    from equipoise.results.comparison.rows import read_comparison

    if options.figures or options.out or options.to:
        raise ValueError(
            "--markdown and --search print and draw nothing: use them without --out, --figures "
            "and --to"
        )
    if options.markdown:
        print(as_markdown(options.folder))
    if options.search:
        rows = read_comparison(Path(options.folder)).rows
        print(judge_observations(rows, options.search, markdown=options.markdown))


def judge_observations(rows: Sequence[Any], search: str | None, *, markdown: bool = False) -> str:
    """The paper's observations, checked on a comparison's rows and on a sweep's table."""
    from equipoise.results.comparison import observations
    from equipoise.results.sweep import load_search

    path = Path(search) / "table.json" if search and Path(search).is_dir() else search
    found = observations.observe(list(rows), load_search(Path(path)) if path else [])
    return (
        observations.observations_markdown(found)
        if markdown
        else observations.observations_lines(found)
    )


REPORT = Verb(
    "report",
    help="a results folder as one HTML page, and its figures as pictures",
    description="A page that needs nothing else, of a comparison, a sweep, an arena or a single "
    "training, and each figure's data as CSV; with --figures also each figure as a picture. A "
    "comparison's rows.json does as well as its folder.",
    examples=(
        "equipoise report results",
        "equipoise report runs/a --out a.html",
        "equipoise report results/rows.json --markdown",
        "equipoise report results --figures pdf --to paper/figures",
        "equipoise report results --price 2.50",
        "equipoise report runs/a --animate loads.gif",
    ),
    add_options=_add_report_options,
    run=_run_report_verb,
    extra="report",
)
