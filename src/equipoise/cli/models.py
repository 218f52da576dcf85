"""The verb for models people already have: doctor."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add(verbs: Any) -> None:
    _add_doctor(verbs)


def _add_doctor(verbs: Any) -> None:
    doctor = verbs.add_parser(
        "doctor",
        help="look at the correction biases of a checkpoint",
        description="Read the routers' biases of a checkpoint (safetensors, sharded or not; no "
        "other weights are loaded). For "
        "each layer: dtype, common offset, spread, the values left in bf16, and the share of "
        "tokens that would choose other "
        "experts if the bias were rounded.",
        epilog="examples:\n  equipoise doctor ./my-model\n  equipoise doctor ./my-model --trace "
        "./run/trace\n"
        "  equipoise doctor ./my-model --json > biases.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument(
        "folder", metavar="MODEL_DIR", help="a folder with config.json and .safetensors files"
    )
    doctor.add_argument(
        "--trace", metavar="DIR", help="a trace with sampled scores, recorded by equipoise.balance"
    )
    doctor.add_argument(
        "--tokens",
        type=int,
        default=2048,
        help="tokens to draw without a trace (default: %(default)s)",
    )
    doctor.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    doctor.add_argument(
        "--json", action="store_true", help="print the findings as JSON instead of a table"
    )
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> None:
    from equipoise.integrations.huggingface.doctor import examine

    diagnosis = examine(options.folder, options.trace, options.tokens, options.seed)
    print(json.dumps(diagnosis.as_dict(), indent=2) if options.json else diagnosis)
