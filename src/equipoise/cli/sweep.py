"""`equipoise sweep`: every training of a grid, and tables of what came out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from equipoise.cli.verb import Verb, add_json_flag, add_workers_option
from equipoise.storage.json_files import json_text


def _add_sweep_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "grid", metavar="GRID", help="a YAML file, or built-in: demo, paper, paper-tiny"
    )
    parser.add_argument("--out", metavar="FOLDER", help="default: runs/sweep-GRID")
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="default: %(default)s"
    )
    add_workers_option(
        parser, "local: trials side by side (default: %(default)s)", default=1, old="--jobs"
    )
    parser.add_argument(
        "--address", help="ray: of the cluster (default: $RAY_ADDRESS, or this machine alone)"
    )
    parser.add_argument(
        "--cpus-per-trial", type=float, default=1, metavar="N", help="ray: default %(default)s"
    )
    parser.add_argument(
        "--gpus-per-trial", type=float, default=0, metavar="N", help="ray: default %(default)s"
    )
    parser.add_argument(
        "--processes-per-trial",
        type=int,
        metavar="N",
        help="more than one by torchrun (default: one for each GPU)",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="run those again that failed before"
    )
    parser.add_argument("--keep-checkpoints", action="store_true", help="of finished trials too")
    parser.add_argument(
        "--dry-run", action="store_true", help="only say which trainings there would be"
    )
    add_json_flag(parser, "the tables as JSON")


def _run_sweep_verb(options: argparse.Namespace) -> None:
    from equipoise import sweep, write_report
    from equipoise.experiments.sweep.grid import read_grid
    from equipoise.experiments.sweep.table import show_sweep
    from equipoise.results.sweep import SweepTable

    grid = read_grid(options.grid)
    out = Path(options.out) if options.out else grid.default_folder
    if options.dry_run:
        names = [trial.name for trial in grid.trials(out)]
        lines = "\n".join([*names, f"{len(names)} trainings"])
        print(json_text(names) if options.json else lines)
        return
    found = sweep(
        grid,
        out,
        engine=options.engine,
        workers=options.workers,
        address=options.address,
        cpus_per_trial=options.cpus_per_trial,
        gpus_per_trial=options.gpus_per_trial,
        processes_per_trial=options.processes_per_trial,
        retry_failed=options.retry_failed,
        keep_checkpoints=options.keep_checkpoints,
    )
    if options.json:
        print(json_text(found))
    else:
        show_sweep(SweepTable.from_json(found))
        print(f"the page: {write_report(out).page}")
    if found["failed"]:
        print(
            f"equipoise: trials that failed: {len(found['failed'])}; each says why in its "
            "failure.json; remove the cause, and --retry-failed runs them again",
            file=sys.stderr,
        )
        raise SystemExit(1)


SWEEP = Verb(
    "sweep",
    help="every training of a grid, here or on a Ray cluster; the best setting of each scheme",
    description="Train every combination of the values in a grid and find each scheme's best "
    "setting by validation loss. The same command continues where it was stopped; several at once, "
    "on one machine or many, share the work.",
    notes="""grids: demo (13 runs, a minute), paper (the paper's search: 216 runs of the 1B
model), or a YAML file:
  base: {preset: tiny, steps: 100}
  axes:
    balancer: [deepseek, aux]
    update_rate: [1e-3, 1e-2]""",
    examples=(
        "equipoise sweep demo --workers 2",
        "equipoise sweep paper --dry-run",
        "equipoise sweep my_grid.yaml --out runs/search --workers 2",
        "equipoise sweep my_grid.yaml --out runs/search --retry-failed",
        "equipoise sweep paper --engine ray --address auto --gpus-per-trial 8 --cpus-per-trial 32",
    ),
    add_options=_add_sweep_options,
    run=_run_sweep_verb,
    extra="train",
)
