"""`equipoise record`: run a trained model over text and keep its routers' scores."""

from __future__ import annotations

import argparse

from equipoise.cli.lists import add_list_option, split_list
from equipoise.cli.progress import progress_bar
from equipoise.cli.verb import RenamedFlag, Verb


def _add_record_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="the folder of a training, or of a Hugging Face model"
    )
    parser.add_argument(
        "--out", required=True, metavar="FOLDER", help="where the trace goes: a new folder"
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="a text file or folder (default, for a training: its own texts)",
    )
    parser.add_argument("--text", dest="data", action=RenamedFlag, new="--data")
    parser.add_argument(
        "--batches",
        type=int,
        default=30,
        metavar="N",
        help="how many at most (default: %(default)s)",
    )
    parser.add_argument("--steps", dest="batches", type=int, action=RenamedFlag, new="--batches")
    parser.add_argument(
        "--batch-size", type=int, help="sequences in a batch (default: the training's, or 8)"
    )
    add_list_option(
        parser, "--layers", default=(), metavar="NAME", help="only these; * stands for anything"
    )
    parser.add_argument(
        "--layer", dest="layers", nargs="+", type=split_list(), action=RenamedFlag, new="--layers"
    )
    models = parser.add_argument_group("of a Hugging Face model only")
    models.add_argument(
        "--sequence-length",
        type=int,
        metavar="N",
        help="tokens in a sequence (default: 512 at most)",
    )
    models.add_argument(
        "--device", help="cpu (default), cuda, or auto to spread it over what there is"
    )
    models.add_argument(
        "--dtype", help="to compute in, such as float32 (default: as the weights are stored)"
    )


def _run_record_verb(options: argparse.Namespace) -> None:
    from equipoise import record

    with progress_bar("batches") as advance:
        trace = record(
            options.folder,
            options.out,
            data=options.data,
            batches=options.batches,
            batch_size=options.batch_size,
            layers=options.layers,
            sequence_length=options.sequence_length,
            device=options.device,
            dtype=options.dtype,
            on_batch=lambda: advance(1, options.batches),
        )
    kept = len(trace.steps(0))
    few = "" if kept == options.batches else f" (of {options.batches}: the text ended)"
    layers = "1 layer" if len(trace.layers) == 1 else f"{len(trace.layers)} layers"
    print(f"{options.out}: {kept} batches{few} of {layers}. Next: equipoise arena {options.out}")


RECORD = Verb(
    "record",
    help="run a trained model over text and keep its routers' scores",
    description="Run a model over text, and keep the scores of every router in a trace: the newest "
    "checkpoint of a training, or a Hugging Face model's folder (safetensors only; no code of it "
    "is run). Nothing learns.",
    examples=(
        "equipoise record runs/a --out scores/a",
        "equipoise record runs/a --data my_texts/ --batches 50 --out scores/b",
        "equipoise record my-model/ --data my_texts/ --batch-size 4 --sequence-length 1024 "
        "--out scores/c",
        "equipoise arena scores/c",
    ),
    add_options=_add_record_options,
    run=_run_record_verb,
    extra="hf",
)
