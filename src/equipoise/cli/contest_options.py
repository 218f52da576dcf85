"""The options that `equipoise arena` and `equipoise tune` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from equipoise.cli.lists import add_list_option
from equipoise.cli.verb import add_json_flag, add_workers_option

_SHARED = ("balancers", "rates", "steps", "tokens", "seed", "devices", "out", "workers")


def add_contest_options(parser: argparse.ArgumentParser, default_balancers: str) -> None:
    add_list_option(
        parser,
        "--balancers",
        alias="--schemes",
        metavar="NAME",
        default=(),
        help=f"which ones (default: {default_balancers})",
    )
    add_list_option(
        parser,
        "--rates",
        kind=float,
        metavar="U",
        help="for every rule that has a rate (default: its own)",
    )
    parser.add_argument("--steps", type=int, help="batches (default: the stream's own)")
    parser.add_argument(
        "--tokens", type=int, help="tokens in a batch of a built-in stream (default: its own)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of built-in streams (default: %(default)s)"
    )
    parser.add_argument(
        "--devices", type=int, help="that share the experts, for idle time (default: 8)"
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="keep each cell's figures here, and continue with what is there",
    )
    add_workers_option(parser, "processes (default: as many as processors)")
    add_json_flag(parser)


def contest_settings(options: argparse.Namespace) -> Mapping[str, Any]:
    """The shared options as arguments of run_arena and tune."""
    return {name: getattr(options, name) for name in _SHARED}
