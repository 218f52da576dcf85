"""`equipoise tune`: one paragraph about which balancer and rate to take, or the same as JSON."""

from __future__ import annotations

import argparse
import dataclasses

from equipoise.cli.contest_options import add_contest_options, contest_settings
from equipoise.cli.progress import progress_bar
from equipoise.cli.verb import Verb
from equipoise.storage.json_files import json_text


def _add_tune_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "stream",
        metavar="STREAM",
        help="a built-in one, or a layer of a run or a trace: FOLDER:LAYER",
    )
    add_contest_options(parser, "all causal ones")


def _run_tune_verb(options: argparse.Namespace) -> None:
    from equipoise import tune

    with progress_bar("cells") as advance:
        recommendation = tune(options.stream, on_progress=advance, **contest_settings(options))
    text = json_text(dataclasses.asdict(recommendation))
    print(text if options.json else recommendation.paragraph())


TUNE = Verb(
    "tune",
    help="which balancer and rate suit this stream of scores, with the evidence",
    description="Replay a stream under the causal balancers at several rates, and recommend one if "
    "the evidence allows.",
    examples=(
        "equipoise tune drift",
        "equipoise record runs/a --out scores/a",
        "equipoise tune scores/a:blocks.1 --json",
    ),
    add_options=_add_tune_options,
    run=_run_tune_verb,
    extra="report",
)
