"""The second half of `equipoise plan`: the time of a step on a cluster, by imbalance."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from equipoise.cli.verb import given_options
from equipoise.storage.json_files import json_text
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from equipoise.costs.step_time import ImbalanceCost, StepTime

PUBLISHED_STEPS = 1000
"""what hours are of, where a model has no number of steps"""


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """What `plan` and `simulate` ask of a cluster."""
    parser.add_argument(
        "--expert-parallel",
        type=int,
        metavar="P",
        help="devices that share the experts (default: the most, up to 64, that divide both)",
    )
    parser.add_argument(
        "--hidden",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the exchange of tokens, what is behind computing (default: 0)",
    )
    parser.add_argument("--price", type=float, help="of a device hour, in any money")


def show_step_times(options: argparse.Namespace, imbalances: list[float]) -> None:
    """Print the table, or JSON."""
    from equipoise import step_time
    from equipoise.training.config import TRAINING_PRESETS, preset

    of_preset = options.preset in TRAINING_PRESETS
    changes = given_options(options, ("micro_batch_size",))
    times = step_time(
        options.preset,
        options.cluster,
        expert_parallel=options.expert_parallel,
        hidden=options.hidden or 0.0,
        utilization=options.utilization,
        **changes,
    )
    usual = preset(options.preset).steps if of_preset else PUBLISHED_STEPS
    steps = usual if options.steps is None else options.steps
    rows = times.table(imbalances, steps=steps, price=options.price)
    if options.json:
        made = times.to_dict() | {"steps": steps, "assumptions": step_assumptions(times)}
        print(json_text(made | {"imbalances": [asdict(row) for row in rows]}))
        return
    import_optional("rich", extra="train")
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_table_of(times, rows, steps))
    console.print("Assumed:")
    for line in step_assumptions(times):
        console.print(f"  - {line}", markup=False)


def _table_of(times: StepTime, rows: list[ImbalanceCost], steps: int) -> object:
    from equipoise.results.terminal_table import terminal_table

    headings = ["imbalance", "fullest device", "s a step", "idle", "device hours", "lost"]
    priced = rows[0].lost_money is not None
    table = terminal_table(
        [*headings, *(["lost money"] if priced else [])],
        title=f"{times.workload.name} on {times.cluster.name}, {steps:,} steps",
    )
    for row in rows:
        money = [f"{row.lost_money:,.0f}"] if row.lost_money is not None else []
        table.add_row(
            f"{row.imbalance:g}",
            f"{row.fullest:.3f}x",
            f"{row.step_seconds:,.3g}",
            f"{row.idle_share:.1%}",
            f"{row.device_hours:,.0f}",
            f"{row.lost_device_hours:,.0f}",
            *money,
        )
    return table


def step_assumptions(times: StepTime) -> list[str]:
    """What the figures rest on, in words."""
    cluster, gpu = times.cluster, times.cluster.gpu
    return [
        f"balanced: {times.seconds():,.3g} s = {times.expert_seconds:,.3g} experts + "
        f"{times.exchange_seconds:,.3g} exchange of tokens + {times.rest_seconds:,.3g} all else; "
        "the first two grow with the fullest device",
        f"{gpu.teraflops:,.0f} TFLOP/s a device, {cluster.compute_share:.0%} reached; links "
        f"{gpu.link:,.0f} GB/s in nodes of {gpu.node}, {cluster.link_share:.0%} reached; network "
        f"{gpu.network:,.0f} GB/s, {cluster.network_share:.0%} reached",
        f"groups of {times.group} devices share the experts of a layer, as equal blocks; loads "
        "normal and independent, by the imbalance of single forwards",
        "not counted: pipeline bubbles, optimizer and gradients where they are not hidden, memory",
    ]
