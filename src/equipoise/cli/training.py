"""The verbs that train, compare trainings and show them: train, plan, compare, report."""

from __future__ import annotations

import argparse
import json
from typing import Any

from equipoise.extras import require


def add(verbs: Any) -> None:
    _add_train(verbs)
    _add_plan(verbs)
    _add_compare(verbs)
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

    command.run(options.arguments)


def _add_plan(verbs: Any) -> None:
    plan = verbs.add_parser(
        "plan",
        help="what a training would cost",
        description="Parameters, memory, FLOPs, hours and epochs of a training, and what imbalance costs in idle time.",
        epilog="examples:\n  equipoise plan deepseekmoe-1b --gpus 8\n"
        "  equipoise plan deepseekmoe-3b --gpus 16 --gpu A100 --imbalance 0.3 --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plan.add_argument("preset", help="tiny, small, deepseekmoe-1b or deepseekmoe-3b")
    plan.add_argument("--gpus", type=int, default=8, help="how many (default: %(default)s)")
    plan.add_argument("--gpu", default="H100", help="which, by name (default: %(default)s)")
    plan.add_argument("--utilization", type=float, default=0.3, help="of its peak (default: %(default)s)")
    plan.add_argument(
        "--imbalance", type=float, default=0.09, help="mean |load - target| / target (default: the paper's 0.09)"
    )
    plan.add_argument("--steps", type=int, help="instead of the preset's")
    plan.add_argument("--parallel", choices=("ddp", "fsdp"), help="instead of the preset's")
    plan.add_argument("--micro-batch-size", type=int, help="instead of the preset's")
    plan.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
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
    require("rich", extra="train")
    plan.show(made)


def _add_compare(verbs: Any) -> None:
    compare = verbs.add_parser(
        "compare",
        help="the paper's experiment: the same training under every scheme",
        description="Train under every scheme from the same weights and data, measure each against the exact optimum, and "
        "write a results folder. The same command goes on where it was stopped.",
        epilog="examples:\n  equipoise compare --out results\n  equipoise compare --seeds 3 --schemes none deepseek curvature\n"
        "  torchrun --nproc-per-node 8 -m equipoise compare --preset deepseekmoe-1b --out results",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("--out", default="results", metavar="FOLDER", help="default: %(default)s")
    compare.add_argument("--preset", default="tiny", help="of every training (default: %(default)s)")
    compare.add_argument("--schemes", nargs="+", metavar="NAME", help="which ones (default: all eight)")
    compare.add_argument("--seeds", type=int, default=1, help="how many (default: %(default)s)")
    compare.add_argument(
        "--at-once", type=int, metavar="N", help="trainings side by side (default: a core each, at most 2)"
    )
    compare.add_argument("--steps", type=int, help="instead of the preset's")
    compare.add_argument("--data", help="instead of the preset's")
    compare.add_argument("--json", action="store_true", help="print the table as JSON")
    compare.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> None:
    from equipoise.experiments import compare, table

    changes = {name: value for name in ("steps", "data") if (value := getattr(options, name)) is not None}
    rows = compare.compare(
        options.out,
        preset=options.preset,
        schemes=options.schemes,
        seeds=options.seeds,
        at_once=options.at_once,
        **changes,
    )
    if not rows:
        return  # not the first rank
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        from equipoise.report import report

        table.show(rows)
        print(f"the page: {report(options.out)}")


def _add_report(verbs: Any) -> None:
    report = verbs.add_parser(
        "report",
        help="a results folder as one HTML page",
        description="A page that needs nothing else, of a comparison or a single training, and each figure's data as CSV.",
        epilog="examples:\n  equipoise report results\n  equipoise report runs/a --out a.html",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("folder", metavar="FOLDER", help="of `equipoise compare` or `equipoise train`")
    report.add_argument("--out", metavar="FILE", help="default: report.html in the folder")
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    from equipoise.report import report

    print(report(options.folder, options.out))
