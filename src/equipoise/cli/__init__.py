"""The command `equipoise`: each verb parses its options, calls the public function, and shows.

A file a verb. What a verb needs is imported when it runs, so that --help is quick.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import equipoise
from equipoise.cli.arena import ARENA
from equipoise.cli.compare import COMPARE
from equipoise.cli.demo import DEMO
from equipoise.cli.doctor import DOCTOR
from equipoise.cli.plan import PLAN
from equipoise.cli.record import RECORD
from equipoise.cli.report import REPORT
from equipoise.cli.solve import SOLVE
from equipoise.cli.sweep import SWEEP
from equipoise.cli.train import TRAIN
from equipoise.cli.tune import TUNE
from equipoise.cli.verify import VERIFY
from equipoise.storage.optional import missing_module

VERBS = (DEMO, ARENA, TUNE, RECORD, SOLVE, VERIFY, TRAIN, PLAN, COMPARE, SWEEP, REPORT, DOCTOR)
"""in the order of --help"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line. Returns 0, or 2 for a mistake that was explained on stderr."""
    options = build_parser().parse_args(arguments)
    try:
        options.run(options)
    except ModuleNotFoundError as error:
        print(f"equipoise: {missing_module(error, options.extra)}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, OSError, FloatingPointError, MemoryError) as error:
        print(f"equipoise: {str(error) or 'there is not enough memory'}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"equipoise: {str(stop) or 'stopped'}", file=sys.stderr)
        return getattr(stop, "exit_code", 130)
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equipoise",
        description="Keeps the experts of a sparse Mixture-of-Experts evenly loaded without an "
        "auxiliary loss.",
    )
    parser.add_argument("--version", action="version", version=f"equipoise {equipoise.__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_to(verbs)
    return parser
