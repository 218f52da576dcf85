"""`equipoise export`: a training as the folder of a transformers model."""

from __future__ import annotations

import argparse

from equipoise.cli.verb import Verb


def _add_export_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the folder of a training")
    parser.add_argument(
        "--out", required=True, metavar="FOLDER", help="where the model goes: a new folder"
    )
    parser.add_argument(
        "--settled",
        action="store_true",
        help="take the settled shifts, without the noise of the last batches",
    )


def _run_export_verb(options: argparse.Namespace) -> None:
    from equipoise import export

    exported = export(options.folder, options.out, settled=options.settled)
    print(f"{exported}. Next: equipoise doctor {exported.folder}")


EXPORT = Verb(
    "export",
    help="write a training as a transformers model",
    description="Write the newest checkpoint of a training as the folder of a transformers model: "
    "config, weights and shifts as safetensors, tokenizer, model card. The folder is loaded again "
    "and must give the same logits to 1e-5. A model that no family of transformers computes "
    "exactly is refused.",
    examples=(
        "equipoise export runs/a --out exported-model",
        "equipoise export runs/a --settled --out exported-settled  # shifts without noise",
        "equipoise doctor exported-model",
    ),
    add_options=_add_export_options,
    run=_run_export_verb,
    extra="hf",
)
