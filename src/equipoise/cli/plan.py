"""`equipoise plan`: what a training would cost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.cli.step_table import add_cluster_options, show_step_times
from equipoise.cli.verb import Verb, add_json_flag, given_options
from equipoise.storage.json_files import json_text
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from equipoise.experiments.plan import TrainingPlan


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "preset",
        metavar="MODEL",
        help="tiny, small, deepseekmoe-1b or deepseekmoe-3b; with --cluster also deepseek-v3, "
        "kimi-k2 or grug-250b",
    )
    parser.add_argument(
        "--cluster",
        metavar="KIND-NUMBER",
        help="the time of a step by imbalance, on a cluster such as gb200-64, or on one of a "
        "YAML file's figures",
    )
    add_cluster_options(parser)
    # None: not given, for which --cluster is not asked
    parser.set_defaults(hidden=None)
    parser.add_argument("--gpus", type=int, help="how many (default: 8)")
    parser.add_argument("--gpu", help="which, by name (default: H100)")
    parser.add_argument(
        "--utilization", type=float, help="of its peak (default: 0.3; with --cluster 0.4)"
    )
    parser.add_argument(
        "--imbalance",
        type=float,
        help="mean |load - target| / target (default: the paper's 0.09; with --cluster several)",
    )
    parser.add_argument("--steps", type=int, help="instead of the preset's")
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), help="instead of the preset's")
    parser.add_argument("--micro-batch-size", type=int, help="instead of the preset's")
    add_json_flag(parser, "the figures as JSON")


def _run_plan_verb(options: argparse.Namespace) -> None:
    from equipoise import plan
    from equipoise.costs.step_time import SHOWN_IMBALANCES, check_price
    from equipoise.costs.workload import PUBLISHED
    from equipoise.experiments.plan import PAPER_IMBALANCE

    check_price(options.price)
    asked = options.imbalance
    if options.cluster:
        _refuse(options, ("gpus", "gpu", "parallel"), "does not go with --cluster, which says it")
        show_step_times(options, [*SHOWN_IMBALANCES] if asked is None else [0.0, asked])
        return
    if options.preset in PUBLISHED:
        raise ValueError(
            f"{options.preset} is a published model: say where it runs by --cluster, such as "
            "--cluster h800-2048"
        )
    _refuse(options, ("expert_parallel", "hidden"), "goes with --cluster, such as h800-2048")
    made = plan(
        options.preset,
        gpus=8 if options.gpus is None else options.gpus,
        gpu=options.gpu or "H100",
        utilization=0.3 if options.utilization is None else options.utilization,
        imbalance=PAPER_IMBALANCE if asked is None else asked,
        **given_options(options, ("steps", "parallel", "micro_batch_size")),
    )
    if options.json:
        print(json_text(made.to_dict()))
    else:
        import_optional("rich", extra="train")
        _show_plan(made, options.price)


def _refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Flags that would change nothing."""
    for name in given_options(options, names):
        raise ValueError(f"--{name.replace('_', '-')} {why}")


def _show_plan(made: TrainingPlan, price: float | None) -> None:
    from rich.console import Console

    from equipoise.experiments.plan import assumptions
    from equipoise.results.terminal_table import terminal_table

    table = terminal_table((), title=f"{made.preset} on {made.gpus} x {made.gpu}")
    for row in plan_rows(made, price):
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    console.print("Assumed:")
    for line in assumptions(made):
        console.print(f"  - {line}", markup=False)


def plan_rows(made: TrainingPlan, price: float | None = None) -> list[tuple[str, str]]:
    """The table's lines: what, and how much."""
    memory = made.state_gigabytes + made.activation_gigabytes
    verdict = (
        "fits"
        if made.fits
        else "does NOT fit: more GPUs with --parallel fsdp, or a smaller --micro-batch-size"
    )
    money = "" if price is None else f", {price * made.lost_gpu_hours:,.0f} of money"
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
            f"{made.idle_share:.1%} of GPU time idle, {made.lost_gpu_hours:,.1f} GPU hours more"
            f"{money}",
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
    "costs in idle time; with --cluster the time of a step by imbalance, from first principles.",
    examples=(
        "equipoise plan deepseekmoe-1b --gpus 8",
        "equipoise plan deepseekmoe-3b --gpus 16 --gpu A100 --imbalance 0.3 --json",
        "equipoise plan deepseek-v3 --cluster h800-2048 --hidden 1 --price 2",
    ),
    add_options=_add_plan_options,
    run=_run_plan_verb,
    extra="train",
)
