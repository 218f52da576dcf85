"""The command `equipoise`: verbs that call the same public functions as Python does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import equipoise
from equipoise.extras import require


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, TypeError, ModuleNotFoundError, OSError, FloatingPointError) as error:
        print(f"equipoise: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"equipoise: {stop or 'stopped'}", file=sys.stderr)
        return getattr(stop, "exit_code", 130)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equipoise",
        description="Keeps the experts of a sparse Mixture-of-Experts evenly loaded without an auxiliary loss.",
    )
    parser.add_argument("--version", action="version", version=f"equipoise {equipoise.__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    demo = verbs.add_parser(
        "demo",
        help="the balancers at work on a stream of skewed, drifting scores",
        description="Route a stream of skewed, drifting scores with every balancer and compare how even the loads become.",
        epilog="examples:\n  equipoise demo\n  equipoise demo --drift 0.02 --balancers deepseek quantile\n"
        "  equipoise demo --steps 50 --json > demo.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--balancers", nargs="+", metavar="NAME", help="which ones (default: all that set a shift)")
    demo.add_argument("--steps", type=int, default=60, help="batches in the stream (default: %(default)s)")
    demo.add_argument("--tokens", type=int, default=8192, help="tokens in a batch (default: %(default)s)")
    demo.add_argument("--experts", type=int, default=64, help="experts (default: %(default)s)")
    demo.add_argument("--top-k", type=int, default=6, help="experts each token takes (default: %(default)s)")
    demo.add_argument(
        "--drift", type=float, default=0.005, help="how fast the experts' likes wander (default: %(default)s)"
    )
    demo.add_argument("--seed", type=int, default=0, help="of the stream (default: %(default)s)")
    demo.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    demo.set_defaults(run=_demo)
    _add_solve(verbs)
    _add_verify(verbs)
    _add_train(verbs)
    _add_plan(verbs)
    _add_doctor(verbs)
    _add_arena(verbs)
    _add_tune(verbs)
    _add_record(verbs)
    _add_compare(verbs)
    _add_report(verbs)
    return parser


def _add_solve(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    solve = verbs.add_parser(
        "solve",
        help="the exact optimum of the assignment problem for a file of scores",
        description="Give every token K experts and every expert its load so that the sum of scores is greatest; with proof.",
        epilog="examples:\n  equipoise solve scores.npy --top-k 6\n"
        "  equipoise solve layers.safetensors --name layer3 --top-k 8 --shift shift.npy\n"
        "  equipoise solve scores.npy --top-k 6 --out optimum.npz --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    solve.add_argument("file", metavar="FILE", help="scores (tokens, experts): .npy, .npz or .safetensors")
    solve.add_argument("--top-k", type=int, required=True, metavar="K", help="experts each token takes")
    solve.add_argument(
        "--name", help="which array of FILE, where it holds several (default: 'scores', or the only one)"
    )
    solve.add_argument("--target", metavar="FILE", help="loads wanted, one for each expert (default: all equal)")
    solve.add_argument("--shift", metavar="FILE", help="a shift to start from, and to compare with the optimum")
    solve.add_argument("--out", metavar="FILE", help="write experts, loads and shift here: .npz or .safetensors")
    solve.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    solve.set_defaults(run=_solve)


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


def _demo(options: argparse.Namespace) -> None:
    from equipoise.arena import demo

    settings = demo.Settings(
        tuple(options.balancers or demo.CAUSAL),
        options.steps,
        options.tokens,
        options.experts,
        options.top_k,
        options.drift,
        options.seed,
    )
    if options.json:
        print(json.dumps([row._asdict() for row in demo.run(settings)], indent=2))
        return
    require("rich", extra="report")
    demo.show(settings)


def _solve(options: argparse.Namespace) -> None:
    from equipoise.assignment import command

    command.run(
        command.Request(
            options.file, options.top_k, options.name, options.target, options.shift, options.out, options.json
        )
    )


def _add_verify(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verify = verbs.add_parser(
        "verify",
        help="check the paper's statements, on built-in problems or on a training's trace",
        description="Check every numbered statement of the paper. Exits with 1 if something that applies does not hold.",
        epilog="examples:\n  equipoise verify\n  equipoise verify run/trace\n  equipoise verify run/trace --json > all.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument("trace", nargs="?", metavar="TRACE", help="a trace's folder (default: the built-in problems)")
    verify.add_argument(
        "--batches", type=int, default=16, help="how many of a trace's whole batches to look at (default: %(default)s)"
    )
    verify.add_argument("--json", action="store_true", help="print the verdicts as JSON instead of a table")
    verify.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> None:
    from equipoise.theorems import command

    if not command.run(options.trace, as_json=options.json, batches=options.batches):
        raise SystemExit(1)


def _train(options: argparse.Namespace) -> None:
    from equipoise.training import command

    command.run(options.arguments)


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


def _add_doctor(verbs: Any) -> None:
    doctor = verbs.add_parser(
        "doctor",
        help="look at the correction biases of a checkpoint",
        description="Read the routers' biases of a checkpoint (safetensors, sharded or not; no other weights are loaded). For "
        "each layer: dtype, common offset, spread, the values left in bf16, and the share of tokens that would choose other "
        "experts if the bias were rounded.",
        epilog="examples:\n  equipoise doctor ./my-model\n  equipoise doctor ./my-model --trace ./run/trace\n"
        "  equipoise doctor ./my-model --json > biases.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("folder", metavar="MODEL_DIR", help="a folder with config.json and .safetensors files")
    doctor.add_argument("--trace", metavar="DIR", help="a trace with sampled scores, recorded by equipoise.balance")
    doctor.add_argument(
        "--tokens", type=int, default=2048, help="tokens to draw without a trace (default: %(default)s)"
    )
    doctor.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON instead of a table")
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> None:
    from equipoise.integrations.huggingface.doctor import examine

    diagnosis = examine(options.folder, options.trace, options.tokens, options.seed)
    print(json.dumps(diagnosis.as_dict(), indent=2) if options.json else diagnosis)


def _add_arena(verbs: Any) -> None:
    arena = verbs.add_parser(
        "arena",
        help="every balancer and rate on the same scores, made or recorded",
        description="Replay streams of scores under every balancer and rate: how even, how fast, and at what cost.",
        epilog="examples:\n  equipoise arena\n  equipoise arena drift --balancers deepseek curvature --rates 1e-4 1e-3\n"
        "  equipoise arena runs/a/trace --out runs/arena       go on where it stopped by giving the same command again\n"
        "  equipoise arena e256-groups --devices 64 --json > cells.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arena.add_argument(
        "streams", nargs="*", metavar="STREAM", help="a built-in one, or a trace: FOLDER or FOLDER:LAYER"
    )
    arena.add_argument(
        "--balancers", nargs="+", metavar="NAME", default=(), help="which ones (default: seven causal ones)"
    )
    arena.add_argument(
        "--rates", nargs="+", type=float, metavar="U", help="for every rule that has a rate (default: its own)"
    )
    arena.add_argument("--tally-every", type=int, default=1, metavar="N", help="rules learn from every N-th token only")
    arena.add_argument("--every-rate", action="store_true", help="show every rate in the table, not only the best")
    _add_contest_options(arena)
    arena.set_defaults(run=_arena)


def _add_contest_options(verb: argparse.ArgumentParser) -> None:
    """What arena and tune have in common."""
    verb.add_argument("--steps", type=int, help="batches (default: the stream's own)")
    verb.add_argument("--tokens", type=int, help="tokens in a batch of a built-in stream (default: its own)")
    verb.add_argument("--seed", type=int, default=0, help="of built-in streams (default: %(default)s)")
    verb.add_argument("--devices", type=int, help="that share the experts, for idle time (default: 8)")
    verb.add_argument("--out", metavar="FOLDER", help="keep each cell's figures here, and go on with what is there")
    verb.add_argument("--workers", type=int, metavar="N", help="processes (default: as many as processors)")
    verb.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")


def _contest(options: argparse.Namespace, **more: Any) -> Any:
    """What was asked of arena and of tune."""
    from equipoise.arena import command

    same = ("balancers", "rates", "steps", "tokens", "seed", "devices", "out", "workers")
    return command.Request(**{name: getattr(options, name) for name in same}, as_json=options.json, **more)


def _arena(options: argparse.Namespace) -> None:
    from equipoise.arena import command

    more = {"streams": options.streams, "tally_every": options.tally_every, "every_rate": options.every_rate}
    command.run(_contest(options, **more))


def _add_tune(verbs: Any) -> None:
    tune = verbs.add_parser(
        "tune",
        help="which balancer and rate suit this stream of scores, with the evidence",
        description="Replay a stream under the causal balancers at several rates, and recommend one if the evidence allows.",
        epilog="examples:\n  equipoise tune drift\n  equipoise tune runs/a/trace:layers.1 --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tune.add_argument("stream", metavar="STREAM", help="a built-in one, or a layer of a trace: FOLDER:LAYER")
    tune.add_argument(
        "--balancers", nargs="+", metavar="NAME", default=(), help="which ones (default: all causal ones)"
    )
    tune.add_argument(
        "--rates", nargs="+", type=float, metavar="U", help="for every rule that has a rate (default: its own)"
    )
    _add_contest_options(tune)
    tune.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> None:
    from equipoise.arena import tune

    tune.run(_contest(options, streams=[options.stream]))


def _add_record(verbs: Any) -> None:
    record = verbs.add_parser(
        "record",
        help="run a trained model over text and keep its routers' scores",
        description="Run the newest checkpoint of a training over text, and keep the scores of every router in a trace.",
        epilog="examples:\n  equipoise record runs/a --out scores/a\n"
        "  equipoise record runs/a --data my_texts/ --steps 50 --out scores/b\n"
        "  equipoise arena scores/a",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    record.add_argument("folder", metavar="RUN", help="the folder of a training")
    record.add_argument("--out", required=True, metavar="FOLDER", help="where the trace goes: a new folder")
    record.add_argument(
        "--data", help="a text file or folder, encoded by the training's tokenizer (default: its training texts)"
    )
    record.add_argument(
        "--steps", dest="batches", type=int, default=30, metavar="N", help="batches (default: %(default)s)"
    )
    record.add_argument("--batch-size", type=int, help="sequences in a batch (default: the training's)")
    record.set_defaults(run=_record)


def _record(options: argparse.Namespace) -> None:
    from equipoise.arena.record import record

    trace = record(
        options.folder, options.out, data=options.data, batches=options.batches, batch_size=options.batch_size
    )
    print(
        f"{options.out}: {options.batches} batches of {len(trace.layers)} layers. Next: equipoise arena {options.out}"
    )


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
