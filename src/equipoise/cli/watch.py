"""`equipoise watch`: a page that follows runs while they are written."""

from __future__ import annotations

import argparse

from equipoise.cli.verb import Verb


def _add_watch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folder of a training, of balance(..., trace=...), of a sweep or a comparison; it may "
        "begin later",
    )
    parser.add_argument(
        "--port", type=int, default=8642, help="0: a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to bind to; any but this machine's own needs a token (default: %(default)s)",
    )
    parser.add_argument(
        "--token",
        help="what readers must show, at least 16 letters (default: EQUIPOISE_WATCH_TOKEN, which "
        "other users of the machine do not see)",
    )


def _run_watch_verb(options: argparse.Namespace) -> None:
    from equipoise import watch_runs

    watch_runs(options.runs, port=options.port, host=options.host, token=options.token)


WATCH = Verb(
    "watch",
    help="a page that follows runs while they are written",
    description="Serve one page of a training, a trace, a sweep, or several runs side by side, and "
    "follow them until Ctrl-C. It reads, and changes nothing.",
    examples=(
        "equipoise watch runs/a",
        "equipoise watch runs/a runs/b --port 0",
        "equipoise watch search  # the trials of a sweep",
        "equipoise watch runs/a --host 0.0.0.0  # with EQUIPOISE_WATCH_TOKEN set",
    ),
    add_options=_add_watch_options,
    run=_run_watch_verb,
    extra="watch",
)
