"""`equipoise simulate`: a training's first steps on a cluster, as device hours lost."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.cli.arena import check_page_path
from equipoise.cli.lists import add_list_option
from equipoise.cli.progress import progress_bar
from equipoise.cli.step_table import add_cluster_options
from equipoise.cli.verb import Verb, add_json_flag, add_workers_option
from equipoise.storage.json_files import json_text
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from equipoise.results.simulation import BalancerCost, Simulation

PASSED_ON = (
    "stream", "balancers", "rates", "layers", "steps", "device_tokens", "pool", "seed",
    "expert_parallel", "hidden", "price", "placement", "out", "workers", "engine", "address",
)  # fmt: skip
"""options that are arguments of equipoise.simulate"""
LEGEND = (
    "Lost: device hours above a training without waiting; early: in the first tenth of the steps. "
    "Fullest: the fullest device over the mean of its group, in the first step and in the last "
    "third. Even after: steps until it is at most 1.1x."
)


def _add_simulate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="deepseek-v3, kimi-k2, grug-250b, or a preset of train"
    )
    parser.add_argument(
        "cluster", metavar="CLUSTER", help="KIND-NUMBER such as h800-2048, or a YAML file"
    )
    parser.add_argument(
        "--stream",
        default="e384",
        metavar="NAME",
        help="how routers score: a built-in stream in the model's sizes, or a run or a trace "
        "(default: %(default)s)",
    )
    add_list_option(
        parser, "--balancers", metavar="NAME", default=(), help="which (default: the arena's)"
    )
    add_list_option(
        parser, "--rates", kind=float, metavar="U", help="for every rule (default: its own)"
    )
    parser.add_argument("--layers", type=int, help="simulated, for all of the model (default: all)")
    parser.add_argument("--steps", type=int, default=1000, help="default: %(default)s")
    parser.add_argument(
        "--device-tokens",
        type=int,
        default=4096,
        metavar="T",
        help="of a device in one forward (default: %(default)s)",
    )
    parser.add_argument(
        "--pool",
        type=int,
        default=2048,
        metavar="T",
        help="tokens that stand for all there are; 0: every forward has its own (default: "
        "%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    add_cluster_options(parser)
    parser.add_argument(
        "--placement",
        metavar="FILE",
        help="JSON: the device of every expert in a group, or a map of `equipoise place` without "
        "copies (default: equal blocks)",
    )
    parser.add_argument(
        "--out", metavar="FOLDER", help="keep each layer here, and continue with what is there"
    )
    parser.add_argument("--page", metavar="FILE", help="write an HTML page too")
    add_workers_option(parser, "processes (default: %(default)s)", default=1)
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="default: %(default)s"
    )
    parser.add_argument(
        "--address", help="ray: of the cluster (default: $RAY_ADDRESS, or this machine alone)"
    )
    add_json_flag(parser)


def _run_simulate_verb(options: argparse.Namespace) -> None:
    from equipoise import simulate

    if options.page:
        check_page_path(options.page)
    if not options.json:
        import_optional("rich", extra="report")
    given = {name: getattr(options, name) for name in PASSED_ON}
    with progress_bar("steps of layers") as advance:
        found = simulate(options.model, options.cluster, on_progress=advance, **given)
    if options.json:
        print(json_text(found.summary()))
    else:
        _show_simulation(found)
    if options.page:
        from equipoise.report.simulation.page import write_simulation_page

        path = write_simulation_page(found, Path(options.page))
        print(f"the page: {path}", file=sys.stderr if options.json else sys.stdout)


def _show_simulation(found: Simulation) -> None:
    from rich.console import Console

    from equipoise.results.terminal_table import terminal_table

    settings = found.settings
    priced = any(row.lost_money is not None for row in found.rows)
    headings = ["balancer", "rate", "lost", "+-", "of all", "early", "first", "last", "even after"]
    table = terminal_table(
        [*headings, *(["money"] if priced else [])],
        title=f"{settings.model} on {settings.cluster}: device hours lost in {settings.steps:,} "
        "steps",
    )
    for row in found.rows:
        table.add_row(*_row_cells(row, priced))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"{settings.layers} of {settings.moe_layers} layers, groups of {settings.group} devices, "
        f"{settings.forward_tokens:,} tokens a forward; chance alone leaves a fullest device of "
        f"{found.chance:.3f}x. {LEGEND}"
    )


def _row_cells(row: BalancerCost, priced: bool) -> list[str]:
    from equipoise.results.simulation import hours_text

    rate = "" if row.rate is None else f"{row.rate:g}"
    if row.diverged_after is not None:
        return [row.balancer, rate, f"diverged at step {row.diverged_after}"]
    error = "" if row.standard_error is None else hours_text(row.standard_error)
    cells = [
        row.balancer,
        rate,
        hours_text(row.lost_device_hours),
        error,
        f"{row.lost_share:.1%}",
        hours_text(row.lost_early),
        f"{row.fullest_first:.2f}x",
        f"{row.fullest_last:.3f}x",
        "never" if row.even_after is None else f"{row.even_after:,}",
    ]
    return [*cells, f"{row.lost_money:,.0f}"] if priced and row.lost_money is not None else cells


SIMULATE = Verb(
    "simulate",
    help="a training's first steps on a cluster: the device hours each balancer loses",
    description="Replay made or recorded scores in the sizes of a model on a cluster, layer by "
    "layer, and show the device hours that every balancer loses to waiting for the fullest device.",
    examples=(
        "equipoise simulate deepseek-v3 h800-2048 --layers 4 --steps 200",
        "equipoise simulate kimi-k2 gb200-512 --hidden 1 --price 3 --out runs/k2 --workers 2",
        "equipoise simulate grug-250b gb200-64 --balancers deepseek curvature --page lost.html",
        "equipoise simulate deepseek-v3 h800-2048 --out runs/v3 --engine ray --address auto",
    ),
    add_options=_add_simulate_options,
    run=_run_simulate_verb,
    extra="report",
)
