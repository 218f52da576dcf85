"""`equipoise train`: the fields of Config are flags, with a preset's or a file's values as
defaults.
"""

from __future__ import annotations

import argparse
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.cli.lists import split_list
from equipoise.cli.verb import Verb
from equipoise.storage.json_files import json_text
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from equipoise.training import Config


def _run_train_verb(options: argparse.Namespace) -> None:
    early, config = read_train_flags(options.arguments)
    # after the flags, which --help and every mistake end with: it takes seconds to load
    from equipoise import train

    result = train(config)
    if not result:
        # not the first rank
        return
    if early.measure:
        from equipoise.experiments.measure import measure

        measure(Path(config.out))
    print(json_text(result) if early.json else _summary_line(config, result))


def read_train_flags(arguments: Sequence[str]) -> tuple[argparse.Namespace, Config]:
    """The flags that are no fields of Config, and the config that the others make."""
    early, rest = _early_flags().parse_known_args(arguments)
    return early, parse_config(rest, _base_config(early.preset, early.config))


def _early_flags() -> argparse.ArgumentParser:
    """What is read before tyro: --preset and --config decide what the defaults are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset")
    parser.add_argument("--config")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", action="store_true")
    return parser


def parse_config(arguments: Sequence[str], base: Config) -> Config:
    """The config that flags make of a base."""
    from equipoise.training import Config

    tyro = import_optional("tyro", extra="train")
    description = f"{TRAIN.description}\n\n{TRAIN.epilog}"
    return tyro.cli(
        Config,
        prog="equipoise train",
        description=description,
        args=_split_lists(arguments, Config),
        default=base,
    )


def _split_lists(arguments: Sequence[str], config: type) -> list[str]:
    """The words with `--histogram-steps 10,20` as `--histogram-steps 10 20`."""
    lists = {
        f"--{name.replace('_', '-')}"
        for name, kind in typing.get_type_hints(config).items()
        if typing.get_origin(kind) is tuple
    }
    words: list[str] = []
    in_list = False
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if argument.startswith("--"):
            in_list = flag.replace("_", "-") in lists
            if in_list and equals:
                words += [flag, *split_list()(value)]
                continue
        words += split_list()(argument) if in_list and "," in argument else [argument]
    return words


def _base_config(name: str | None, file: str | None) -> Config:
    """What flags change: a preset, or the file of --config."""
    from equipoise.training.config import preset, read_config

    if file is None:
        return preset(name or "tiny")
    config = read_config(file)
    if name is None or name == config.preset:
        return config
    raise ValueError(
        f"{file} is of the preset {config.preset!r}: change it there, or leave --preset {name} out"
    )


def _summary_line(config: Config, result: Mapping[str, Any]) -> str:
    return (
        f"{config.out}: {result['steps']} steps, {result['tokens']:,} tokens, "
        f"{result['seconds']:.0f} s. Validation loss {result['validation_loss']:.4f}, "
        f"imbalance {result['imbalance']:.4f}, max violation {result['max_violation']:.3f}"
    )


TRAIN = Verb(
    "train",
    help="train a DeepSeekMoE with any balancer",
    description="Train a DeepSeekMoE with any balancer.",
    notes="""--config FILE reads a YAML or TOML file first; --json prints the result as
JSON; --measure
writes measured.json beside it, which has the run against the exact optimum
(docs/experiments.md).""",
    examples=(
        "equipoise train --preset tiny --balancer deepseek --update-rate 1e-3 --out runs/a",
        "equipoise train --config runs/a/config.yaml --resume  # continues where it stopped",
        "equipoise train --config runs/a/config.yaml --update-rate 3e-3 --out runs/b",
        "equipoise train --data my_texts/ --model.hidden-size 128 --out runs/c",
        "torchrun --nproc-per-node 8 -m equipoise train --preset deepseekmoe-1b --out runs/d",
    ),
    add_options=lambda parser: None,
    run=_run_train_verb,
    extra="train",
    reads_flags=True,
)
