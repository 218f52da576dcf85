"""The verbs that train, compare trainings and show them: train, plan, compare, sweep, report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from equipoise.storage.optional import import_optional


def add(verbs: Any) -> None:
    _add_train(verbs)
    _add_plan(verbs)
    _add_compare(verbs)
    _add_sweep(verbs)
    _add_report(verbs)


def _add_train(verbs: Any) -> None:
    # no character begins a flag here: tyro reads them all, from the dataclass that holds the config
    train = verbs.add_parser(
        "train",
        help="train a DeepSeekMoE with any balancer",
        add_help=False,
        prefix_chars="\0",
        usage=argparse.SUPPRESS,
    )
    train.add_argument("arguments", nargs="*")
    train.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> None:
    from equipoise.training import command

    def measure(folder: Path) -> None:
        from equipoise.experiments.measure import measure as measure_run

        measure_run(folder)

    command.run(options.arguments, measure)


def _add_plan(verbs: Any) -> None:
    plan = verbs.add_parser(
        "plan",
        help="what a training would cost",
        description="Parameters, memory, FLOPs, hours and epochs of a training, and what "
        "imbalance costs in idle time.",
        epilog="examples:\n  equipoise plan deepseekmoe-1b --gpus 8\n"
        "  equipoise plan deepseekmoe-3b --gpus 16 --gpu A100 --imbalance 0.3 --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plan.add_argument("preset", help="tiny, small, deepseekmoe-1b or deepseekmoe-3b")
    plan.add_argument("--gpus", type=int, default=8, help="how many (default: %(default)s)")
    plan.add_argument("--gpu", default="H100", help="which, by name (default: %(default)s)")
    plan.add_argument(
        "--utilization", type=float, default=0.3, help="of its peak (default: %(default)s)"
    )
    plan.add_argument(
        "--imbalance",
        type=float,
        default=0.09,
        help="mean |load - target| / target (default: the paper's 0.09)",
    )
    plan.add_argument("--steps", type=int, help="instead of the preset's")
    plan.add_argument("--parallel", choices=("ddp", "fsdp"), help="instead of the preset's")
    plan.add_argument("--micro-batch-size", type=int, help="instead of the preset's")
    plan.add_argument(
        "--json", action="store_true", help="print the figures as JSON instead of a table"
    )
    plan.set_defaults(run=_plan)


def _plan(options: argparse.Namespace) -> None:
    from equipoise.experiments import plan

    changes = {name: getattr(options, name) for name in ("steps", "parallel", "micro_batch_size")}
    made = plan.plan(
        options.preset,
        gpus=options.gpus,
        gpu=options.gpu,
        utilization=options.utilization,
        imbalance=options.imbalance,
        **{name: value for name, value in changes.items() if value is not None},
    )
    if options.json:
        print(json.dumps(made.to_dict(), indent=2))
        return
    import_optional("rich", extra="train")
    plan.show(made)


def _add_compare(verbs: Any) -> None:
    compare = verbs.add_parser(
        "compare",
        help="the paper's experiment: the same training under every scheme",
        description="Train under every scheme from the same weights and data, measure each "
        "against the exact optimum, and "
        "write a results folder. The same command goes on where it was stopped.",
        epilog="examples:\n  equipoise compare --out results\n  equipoise compare --seeds 3 "
        "--schemes none deepseek curvature\n"
        "  equipoise compare --preset paper-tiny --seeds 3 --out results-paper\n"
        "  torchrun --nproc-per-node 8 -m equipoise compare --preset deepseekmoe-1b --out results",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("--out", default="results", metavar="FOLDER", help="default: %(default)s")
    compare.add_argument(
        "--preset", default="tiny", help="of every training (default: %(default)s)"
    )
    compare.add_argument(
        "--schemes", nargs="+", metavar="NAME", help="which ones (default: all eight)"
    )
    compare.add_argument("--seeds", type=int, default=1, help="how many (default: %(default)s)")
    compare.add_argument(
        "--at-once",
        type=int,
        metavar="N",
        help="trainings side by side (default: a core each, at most 2)",
    )
    compare.add_argument("--steps", type=int, help="instead of the preset's")
    compare.add_argument("--data", help="instead of the preset's")
    compare.add_argument(
        "--settled",
        action="store_true",
        help="evaluate under the settled shift too (docs/how-to.md)",
    )
    compare.add_argument(
        "--search",
        metavar="FOLDER",
        help="of `equipoise sweep paper-tiny`: for the paper's observation on u",
    )
    compare.add_argument("--json", action="store_true", help="print the table as JSON")
    compare.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> None:
    from equipoise.experiments import compare

    changes = {
        name: value for name in ("steps", "data") if (value := getattr(options, name)) is not None
    }
    rows = compare.compare(
        options.out,
        preset=options.preset,
        schemes=options.schemes,
        seeds=options.seeds,
        at_once=options.at_once,
        settled=options.settled,
        **changes,
    )
    if not rows:
        return  # not the first rank
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        from equipoise.experiments import table
        from equipoise.report import report
        from equipoise.report.comparison.read import read_results

        found = read_results(Path(options.out))
        table.show(found)
        if options.preset.startswith("paper") or options.search:
            print(_observations(found.rows, options.search))
        print(f"the page: {report(options.out)}")


def _observations(rows: list[dict[str, Any]], search: str | None, *, markdown: bool = False) -> str:
    from equipoise.results.comparison import observations

    path = Path(search) / "table.json" if search and Path(search).is_dir() else search
    found = observations.observe(rows, observations.read_search(Path(path)) if path else [])
    return observations.as_markdown(found) if markdown else observations.as_text(found)


def _add_sweep(verbs: Any) -> None:
    sweep = verbs.add_parser(
        "sweep",
        help="every training of a grid, here or on a Ray cluster; the best setting of each scheme",
        description="Train every combination of the values in a grid and find each scheme's best "
        "setting by validation loss. "
        "The same command goes on where it was stopped; several at once, on one machine or many, "
        "share the work.",
        epilog="""grids: demo (13 runs, a minute), paper (the paper's search: 216 runs of the 1B model), or a YAML file:
  base: {preset: tiny, steps: 100}
  axes:
    balancer: [deepseek, aux]
    update_rate: [1e-3, 1e-2]

examples:
  equipoise sweep demo --jobs 2
  equipoise sweep paper --dry-run
  equipoise sweep my_grid.yaml --out runs/search --jobs 2
  equipoise sweep my_grid.yaml --out runs/search --retry-failed
  equipoise sweep paper --engine ray --address auto --gpus-per-trial 8 --cpus-per-trial 32""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sweep.add_argument("grid", metavar="GRID", help="a YAML file, or a built-in grid: demo, paper")
    sweep.add_argument("--out", metavar="FOLDER", help="default: runs/sweep-GRID")
    sweep.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="default: %(default)s"
    )
    sweep.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="local: trials side by side (default: 1)"
    )
    sweep.add_argument(
        "--address", help="ray: of the cluster (default: $RAY_ADDRESS, or this machine alone)"
    )
    sweep.add_argument(
        "--cpus-per-trial", type=float, default=1, metavar="N", help="ray: default %(default)s"
    )
    sweep.add_argument(
        "--gpus-per-trial", type=float, default=0, metavar="N", help="ray: default %(default)s"
    )
    sweep.add_argument(
        "--processes-per-trial",
        type=int,
        metavar="N",
        help="more than one by torchrun (default: one for each GPU)",
    )
    sweep.add_argument(
        "--retry-failed", action="store_true", help="do those again that failed before"
    )
    sweep.add_argument("--keep-checkpoints", action="store_true", help="of finished trials too")
    sweep.add_argument(
        "--dry-run", action="store_true", help="only say which trainings there would be"
    )
    sweep.add_argument("--json", action="store_true", help="print the tables as JSON")
    sweep.set_defaults(run=_sweep)


def _sweep(options: argparse.Namespace) -> None:
    from equipoise.experiments.sweep import grid, sweep
    from equipoise.experiments.sweep import table as sweep_table

    read = grid.read_grid(options.grid)
    out = options.out or f"runs/sweep-{read.name}"
    if options.dry_run:
        names = [trial.name for trial in read.trials(Path(out))]
        print(
            json.dumps(names, indent=2)
            if options.json
            else "\n".join([*names, f"{len(names)} trainings"])
        )
        return
    found = sweep.sweep(
        read,
        out,
        engine=options.engine,
        at_once=options.jobs,
        address=options.address,
        cpus_per_trial=options.cpus_per_trial,
        gpus_per_trial=options.gpus_per_trial,
        processes_per_trial=options.processes_per_trial,
        retry_failed=options.retry_failed,
        keep_checkpoints=options.keep_checkpoints,
    )
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        from equipoise.report import report

        sweep_table.show(found)
        print(f"the page: {report(out)}")
    if found["failed"]:
        again = (
            "each says why in its failure.json; mend the cause, and --retry-failed does them again"
        )
        print(f"equipoise: trials that failed: {len(found['failed'])}; {again}", file=sys.stderr)
        raise SystemExit(1)


def _add_report(verbs: Any) -> None:
    report = verbs.add_parser(
        "report",
        help="a results folder as one HTML page, and its figures as pictures",
        description="A page that needs nothing else, of a comparison, a sweep, an arena or a "
        "single training, and each "
        "figure's data as CSV; with --figures also each figure as a picture. A comparison's "
        "rows.json does as well as its "
        "folder.",
        epilog="examples:\n  equipoise report results\n  equipoise report runs/a --out a.html\n"
        "  equipoise report results/rows.json --markdown\n"
        "  equipoise report results --figures pdf --to paper/figures",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument(
        "folder",
        metavar="FOLDER",
        help="of `equipoise compare`, `sweep`, `arena --out` or `train`; or the rows.json of "
        "a comparison",
    )
    report.add_argument(
        "--out",
        metavar="FILE",
        help="default: report.html in the folder, or rows.html beside rows.json",
    )
    report.add_argument(
        "--markdown",
        action="store_true",
        help="a comparison: print its tables as Markdown, and draw nothing",
    )
    report.add_argument(
        "--search",
        metavar="FOLDER",
        help="a comparison: print the paper's seven observations, with this sweep's for u",
    )
    report.add_argument(
        "--figures", choices=("png", "svg", "pdf"), help="draw them, by a browser on this machine"
    )
    report.add_argument(
        "--to",
        metavar="DIR",
        help="where pictures and their data go (default: figures/ beside the page)",
    )
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    from equipoise.report import as_markdown, draw, report
    from equipoise.report.comparison.read import read_results

    if options.to and not options.figures:
        raise ValueError("--to says where pictures go: it goes with --figures png, svg or pdf")
    if options.markdown or options.search:
        if options.figures or options.out:
            raise ValueError(
                "--markdown and --search print and draw nothing: they go without --out and "
                "--figures"
            )
        if options.markdown:
            print(as_markdown(options.folder))
        if options.search:
            print(
                _observations(
                    read_results(Path(options.folder)).rows,
                    options.search,
                    markdown=options.markdown,
                )
            )
        return
    page = report(options.folder, options.out)
    print(page)
    if options.figures:
        print("\n".join(map(str, draw(page, options.figures, options.to))))
