"""`equipoise doctor`: the correction biases of a checkpoint."""

from __future__ import annotations

import argparse

from equipoise.cli.verb import Verb, add_json_flag
from equipoise.storage.json_files import json_text


def _add_doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="a folder with config.json and .safetensors files"
    )
    parser.add_argument(
        "--trace",
        metavar="FOLDER",
        help="a trace with sampled scores, recorded by equipoise.balance",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=2048,
        help="tokens to draw without a trace (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    add_json_flag(parser, "the findings as JSON")


def _run_doctor_verb(options: argparse.Namespace) -> None:
    from equipoise import doctor

    diagnosis = doctor(options.folder, options.trace, options.tokens, options.seed)
    print(json_text(diagnosis.as_dict()) if options.json else diagnosis)
    if diagnosis.serious:
        raise SystemExit(1)


DOCTOR = Verb(
    "doctor",
    help="look at the correction biases of a checkpoint",
    description="Read the routers' biases of a checkpoint (safetensors, sharded or not; no other "
    "weights are loaded). For each layer: dtype, common offset, spread, the values left in bf16, "
    "and the share of tokens that would choose other experts if the bias were rounded. The "
    "sidecar equipoise.safetensors beside the model is compared. Exits with 0 if nothing is "
    "serious; with 1 if the model as it is routes otherwise than it was trained: values that are "
    "no numbers, digits lost in bf16, a bias that is not the sidecar's, or a shift that only the "
    "sidecar has; with 2 for a mistake, such as a folder without a bias.",
    examples=(
        "equipoise doctor ./my-model",
        "equipoise doctor ./my-model --trace ./run/trace",
        "equipoise doctor ./my-model --json > biases.json",
    ),
    add_options=_add_doctor_options,
    run=_run_doctor_verb,
    extra="hf",
)
