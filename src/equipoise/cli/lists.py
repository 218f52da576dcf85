"""Options that take several values: `--rates 1e-3 1e-2` and `--rates 1e-3,1e-2` are the same."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ParseWord = Callable[[str], Any]


def split_list(kind: ParseWord = str) -> Callable[[str], list[Any]]:
    """A word of the command line to the values it stands for, each of this kind.

    A word that names something on disk is one value, whatever commas it has.
    """

    def parse_list(word: str) -> list[Any]:
        if _is_on_disk(word):
            return [kind(word)]
        return [kind(part.strip()) for part in word.split(",") if part.strip()]

    # argparse says "invalid float value" with it
    parse_list.__name__ = getattr(kind, "__name__", "list")
    return parse_list


def flatten_list(values: Any) -> Any:
    """The values of all words in one list; anything that is no list of lists stays as it is."""
    if not isinstance(values, list) or not any(isinstance(each, list) for each in values):
        return values
    return [value for each in values for value in each]


class ListAction(argparse.Action):
    """Stores the values of all words in one list."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        flat = flatten_list(values)
        if option_string and not flat:
            parser.error(f"argument {option_string}: expected at least one value")
        setattr(namespace, self.dest, flat)


def add_list_option(
    parser: argparse.ArgumentParser,
    name: str,
    *,
    kind: ParseWord = str,
    alias: str = "",
    default: Sequence[Any] | None = None,
    metavar: str,
    help: str,
) -> None:
    """An option, or a positional argument, of several values.

    Args:
        parser: of the verb.
        name: such as --rates, or streams for a positional argument, which may then be left out.
        kind: of a value.
        alias: another spelling, which --help does not show.
        default: where it is not given.
        metavar: what --help calls a value.
        help: its line.
    """
    nargs = "+" if name.startswith("-") else "*"
    parse = split_list(kind)
    made = parser.add_argument(
        name,
        nargs=nargs,
        type=parse,
        action=ListAction,
        default=default,
        metavar=metavar,
        help=help,
    )
    if alias:
        parser.add_argument(
            alias,
            dest=made.dest,
            nargs=nargs,
            type=parse,
            action=ListAction,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


def _is_on_disk(word: str) -> bool:
    """Whether it is a path, or a path and a layer: FOLDER:LAYER."""
    try:
        return Path(word).exists() or (":" in word and Path(word.rpartition(":")[0]).exists())
    except (OSError, ValueError):
        return False
