"""The command line of `equipoise train`: the fields of Config, with a preset's or a file's values
as defaults.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from equipoise.storage.optional import import_optional
from equipoise.training.config import Config, preset, read
from equipoise.training.loop import train

DESCRIPTION = """Train a DeepSeekMoE with any balancer.

examples:
  equipoise train --preset tiny --balancer deepseek --update-rate 1e-3 --out runs/a
  equipoise train --config runs/a/config.yaml --resume                       go on where it stopped
  equipoise train --config runs/a/config.yaml --update-rate 3e-3 --out runs/b
  equipoise train --data my_texts/ --model.hidden-size 128 --out runs/c
  torchrun --nproc-per-node 8 -m equipoise train --preset deepseekmoe-1b --out runs/d

--config FILE reads a YAML file first; --json prints the result as JSON; --measure writes measured.json beside it, which
has the run against the exact optimum (docs/experiments.md)."""


def run(arguments: Sequence[str], measure: Callable[[Path], object]) -> None:
    """What `equipoise train` does. measure(folder) is what --measure does with the finished run."""
    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    before.add_argument("--preset")
    before.add_argument("--config")
    before.add_argument("--json", action="store_true")
    before.add_argument("--measure", action="store_true")
    early, rest = before.parse_known_args(arguments)
    config = parse(rest, _base(early.preset, early.config))
    result = train(config)
    if not result:
        return  # not the first rank
    if early.measure:
        measure(Path(config.out))
    print(json.dumps(result, indent=2) if early.json else _told(config, result))


def parse(arguments: Sequence[str], base: Config) -> Config:
    """The config that flags make of a base."""
    tyro = import_optional("tyro", extra="train")
    return tyro.cli(
        Config, prog="equipoise train", description=DESCRIPTION, args=list(arguments), default=base
    )


def _base(name: str | None, file: str | None) -> Config:
    if file is None:
        return preset(name or "tiny")
    config = read(file)
    if name is None or name == config.preset:
        return config
    raise ValueError(
        f"{file} is of the preset {config.preset!r}: change it there, or leave --preset {name} out"
    )


def _told(config: Config, result: dict[str, Any]) -> str:
    return (
        f"{config.out}: {result['steps']} steps, {result['tokens']:,} tokens, "
        f"{result['seconds']:.0f} s. Validation loss "
        f"{result['validation_loss']:.4f}, imbalance {result['imbalance']:.4f}, max violation "
        f"{result['max_violation']:.3f}"
    )
