"""The command `equipoise`: verbs that call the same public functions as Python does.

What a verb needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import equipoise
from equipoise.cli import models, streams, theory, training


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, TypeError, ModuleNotFoundError, OSError, FloatingPointError) as error:
        print(f"equipoise: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"equipoise: {str(stop) or 'stopped'}", file=sys.stderr)
        return getattr(stop, "exit_code", 130)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equipoise",
        description="Keeps the experts of a sparse Mixture-of-Experts evenly loaded without an "
        "auxiliary loss.",
    )
    parser.add_argument("--version", action="version", version=f"equipoise {equipoise.__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for room in (streams, theory, training, models):
        room.add(verbs)
    return parser
