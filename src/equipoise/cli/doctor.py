"""`equipoise doctor`: the correction biases of a checkpoint, and its routers in lower precision."""

from __future__ import annotations

import argparse

from equipoise.cli.precision import add_precision_options, show_precision
from equipoise.cli.verb import Verb, add_json_flag
from equipoise.storage.json_files import json_text


def _add_doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        help="with config.json and .safetensors files; for --precision also a trace, or a "
        "recording of experts with margins",
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
    add_precision_options(parser)
    add_json_flag(parser, "the findings as JSON")


def _run_doctor_verb(options: argparse.Namespace) -> None:
    if options.precision:
        _check_precision_options(options)
        if show_precision(options):
            raise SystemExit(1)
        return
    _refuse_without_precision(options)
    from equipoise import doctor

    diagnosis = doctor(options.folder, options.trace, options.tokens, options.seed)
    print(json_text(diagnosis.as_dict()) if options.json else diagnosis)
    if diagnosis.serious:
        raise SystemExit(1)


def _check_precision_options(options: argparse.Namespace) -> None:
    if options.text and options.trace:
        raise ValueError("--text lets the model compute, --trace takes what was recorded: name one")


def _refuse_without_precision(options: argparse.Namespace) -> None:
    for name in ("text", "allow", "batches", "page"):
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} goes with --precision, such as --precision bf16,fp16,fp32")


DOCTOR = Verb(
    "doctor",
    help="look at the correction biases of a checkpoint",
    description="Read the routers' biases of a checkpoint (safetensors, sharded or not; no other "
    "weights are loaded). For each layer: dtype, common offset, spread, the values left in bf16, "
    "and the share of tokens that would choose other experts if the bias were rounded. The "
    "sidecar equipoise.safetensors beside the model is compared. Exits with 0 if nothing is "
    "serious; with 1 if the model as it is routes otherwise than it was trained: values that are "
    "no numbers, digits lost in bf16, a bias that is not the sidecar's, or a shift that only the "
    "sidecar has; with 2 for a mistake, such as a folder without a bias. With --precision: the "
    "share of tokens whose experts change if the router's logits, its bias or both are computed "
    "in that precision, layer by layer; exits with 1 if a precision changes more than --allow.",
    examples=(
        "equipoise doctor ./my-model",
        "equipoise doctor ./my-model --trace ./run/trace",
        "equipoise doctor ./my-model --json > biases.json",
        "equipoise doctor ./my-model --text my_texts/ --precision bf16,fp16,fp32 --page bf16.html",
        "equipoise doctor ./my-model --trace ./run/trace --precision bf16",
        "equipoise doctor trainer.npz --precision bf16,fp16",
    ),
    add_options=_add_doctor_options,
    run=_run_doctor_verb,
    extra="hf",
)
