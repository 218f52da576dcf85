"""The verbs of the theory: solve and verify."""

from __future__ import annotations

import argparse
from typing import Any


def add(verbs: Any) -> None:
    _add_solve(verbs)
    _add_verify(verbs)


def _add_solve(verbs: Any) -> None:
    solve = verbs.add_parser(
        "solve",
        help="the exact optimum of the assignment problem for a file of scores",
        description="Give every token K experts and every expert its load so that the sum of "
        "scores is greatest; with proof.",
        epilog="examples:\n  equipoise solve scores.npy --top-k 6\n"
        "  equipoise solve layers.safetensors --name layer3 --top-k 8 --shift shift.npy\n"
        "  equipoise solve scores.npy --top-k 6 --out optimum.npz --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    solve.add_argument(
        "file", metavar="FILE", help="scores (tokens, experts): .npy, .npz or .safetensors"
    )
    solve.add_argument(
        "--top-k", type=int, required=True, metavar="K", help="experts each token takes"
    )
    solve.add_argument(
        "--name",
        help="which array of FILE, where it holds several (default: 'scores', or the only one)",
    )
    solve.add_argument(
        "--target", metavar="FILE", help="loads wanted, one for each expert (default: all equal)"
    )
    solve.add_argument(
        "--shift", metavar="FILE", help="a shift to start from, and to compare with the optimum"
    )
    solve.add_argument(
        "--out", metavar="FILE", help="write experts, loads and shift here: .npz or .safetensors"
    )
    solve.add_argument(
        "--json", action="store_true", help="print the results as JSON instead of a table"
    )
    solve.set_defaults(run=_solve)


def _solve(options: argparse.Namespace) -> None:
    from equipoise.optimum import command

    command.run(
        command.Request(
            options.file,
            options.top_k,
            options.name,
            options.target,
            options.shift,
            options.out,
            options.json,
        )
    )


def _add_verify(verbs: Any) -> None:
    verify = verbs.add_parser(
        "verify",
        help="check the paper's statements, on built-in problems or on a training's trace",
        description="Check every numbered statement of the paper. Exits with 1 if something that "
        "applies does not hold.",
        epilog="examples:\n  equipoise verify\n  equipoise verify run/trace\n  equipoise verify "
        "run/trace --json > all.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument(
        "trace",
        nargs="?",
        metavar="TRACE",
        help="a trace's folder (default: the built-in problems)",
    )
    verify.add_argument(
        "--batches",
        type=int,
        default=16,
        help="how many of a trace's whole batches to look at (default: %(default)s)",
    )
    verify.add_argument(
        "--json", action="store_true", help="print the verdicts as JSON instead of a table"
    )
    verify.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> None:
    from equipoise.theorems import command

    if not command.run(options.trace, as_json=options.json, batches=options.batches):
        raise SystemExit(1)
