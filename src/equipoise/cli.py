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
    except (ValueError, TypeError, ModuleNotFoundError, FileNotFoundError) as error:
        print(f"equipoise: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("equipoise: stopped", file=sys.stderr)
        return 130
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
    _add_doctor(verbs)
    return parser


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
