"""`equipoise plan`: what a training would cost."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from equipoise.cli.verb import Verb, add_json_flag, given_options
from equipoise.storage.json_files import json_text
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from equipoise.experiments.plan import TrainingPlan


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "preset", metavar="PRESET", help="tiny, small, deepseekmoe-1b or deepseekmoe-3b"
    )
    parser.add_argument("--gpus", type=int, default=8, help="how many (default: %(default)s)")
    parser.add_argument("--gpu", default="H100", help="which, by name (default: %(default)s)")
    parser.add_argument(
        "--utilization", type=float, default=0.3, help="of its peak (default: %(default)s)"
    )
    parser.add_argument(
        "--imbalance",
        type=float,
        default=0.09,
        help="mean |load - target| / target (default: the paper's 0.09)",
    )
    parser.add_argument("--steps", type=int, help="instead of the preset's")
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), help="instead of the preset's")
    parser.add_argument("--micro-batch-size", type=int, help="instead of the preset's")
    add_json_flag(parser, "the figures as JSON")


def _run_plan_verb(options: argparse.Namespace) -> None:
    from equipoise import plan

    made = plan(
        options.preset,
        gpus=options.gpus,
        gpu=options.gpu,
        utilization=options.utilization,
        imbalance=options.imbalance,
        **given_options(options, ("steps", "parallel", "micro_batch_size")),
    )
    if options.json:
        print(json_text(made.to_dict()))
    else:
        import_optional("rich", extra="train")
        _show_plan(made)


def _show_plan(made: TrainingPlan) -> None:
    from rich.console import Console

    from equipoise.experiments.plan import assumptions
    from equipoise.results.terminal_table import terminal_table

    table = terminal_table((), title=f"{made.preset} on {made.gpus} x {made.gpu}")
    for row in plan_rows(made):
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    console.print("Assumed:")
    for line in assumptions(made):
        console.print(f"  - {line}", markup=False)


def plan_rows(made: TrainingPlan) -> list[tuple[str, str]]:
    """The table's lines: what, and how much."""
    memory = made.state_gigabytes + made.activation_gigabytes
    verdict = (
        "fits"
        if made.fits
        else "does NOT fit: more GPUs with --parallel fsdp, or a smaller --micro-batch-size"
    )
    total, active = short_number(made.parameters), short_number(made.active_parameters)
    return [
        ("parameters", f"{total}, of which a token meets {active}"),
        ("tokens", f"{short_number(made.tokens)} in {made.steps:,} steps"),
        ("epochs", "unknown corpus" if made.epochs is None else f"{made.epochs:,.1f}"),
        ("FLOPs per token", short_number(made.flops_per_token)),
        ("time", f"{made.hours:,.1f} hours, {made.gpu_hours:,.1f} GPU hours"),
        (
            "memory per GPU",
            f"{memory:,.1f} GB ({made.state_gigabytes:,.1f} state, "
            f"{made.activation_gigabytes:,.1f} activations): {verdict}",
        ),
        ("routed experts", f"{made.expert_share:.0%} of all FLOPs"),
        (
            f"imbalance {made.imbalance:g}",
            f"{made.idle_share:.1%} of GPU time idle, {made.lost_gpu_hours:,.1f} GPU hours more",
        ),
    ]


def short_number(number: float) -> str:
    """Three digits and a word: 26.2 billion."""
    import numpy as np

    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            digits = np.format_float_positional(number / size, 3, fractional=False, trim="-")
            return f"{digits} {name}"
    return f"{number:,.0f}"


PLAN = Verb(
    "plan",
    help="what a training would cost",
    description="Parameters, memory, FLOPs, hours and epochs of a training, and what imbalance "
    "costs in idle time.",
    examples=(
        "equipoise plan deepseekmoe-1b --gpus 8",
        "equipoise plan deepseekmoe-3b --gpus 16 --gpu A100 --imbalance 0.3 --json",
    ),
    add_options=_add_plan_options,
    run=_run_plan_verb,
    extra="train",
)
