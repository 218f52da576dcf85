"""What a verb of the command line is: its texts, its options, and the function that runs it.

A verb lives in a file of its name. To add one, write `cli/NAME.py` with a `Verb`, and put it into
`VERBS` in `cli/__init__.py`. What a verb needs beyond argparse is imported when it runs.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.cli.config_file import CONFIG_HELP
from equipoise.cli.lists import flatten_list

HELP_WIDTH = 79
"""columns of a line of --help that argparse does not break itself"""


@dataclass(frozen=True)
class Verb:
    """`equipoise NAME`. Its examples are part of --help, and tests run or parse every one."""

    name: str
    help: str
    """one line, for the list of all verbs"""
    description: str
    examples: tuple[str, ...]
    """whole commands; what follows a # is a remark"""
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    extra: str
    """the extra of equipoise that brings every package it may need"""
    notes: str = ""
    """stands between the options and the examples"""
    reads_flags: bool = False
    """whether `run` reads the flags itself, from the words in `options.arguments`"""

    @property
    def epilog(self) -> str:
        lines = "\n".join(f"  {example}" for example in self.examples)
        return f"{self.notes}\n\nexamples:\n{lines}".lstrip()

    def add_to(self, verbs: Any) -> argparse.ArgumentParser:
        """Add the verb's parser to argparse's sub-parsers."""
        if self.reads_flags:
            # no character begins a flag here, so that all words arrive in `arguments`
            parser = verbs.add_parser(
                self.name,
                help=self.help,
                add_help=False,
                prefix_chars="\0",
                usage=argparse.SUPPRESS,
            )
            parser.add_argument("arguments", nargs="*")
        else:
            parser = verbs.add_parser(
                self.name,
                help=self.help,
                description=textwrap.fill(self.description, HELP_WIDTH),
                epilog=self.epilog,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            self.add_options(parser)
            parser.add_argument("--config", metavar="FILE", help=CONFIG_HELP)
        parser.set_defaults(run=self.run, extra=self.extra)
        return parser


class RenamedFlag(argparse.Action):
    """An old spelling: accepted, hidden from --help, and it says the new one on stderr."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, new: str, **rest: Any) -> None:
        super().__init__(
            option_strings, dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **rest
        )
        self.new = new

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(f"equipoise: {option_string} is now called {self.new}", file=sys.stderr)
        setattr(namespace, self.dest, flatten_list(values))


def add_json_flag(parser: argparse.ArgumentParser, what: str = "the results as JSON") -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} instead of a table")


def add_workers_option(
    parser: argparse.ArgumentParser, help: str, *, default: int | None = None, old: str = ""
) -> None:
    """--workers: how many processes work side by side; `old` is what the verb called it before."""
    parser.add_argument("--workers", type=int, default=default, metavar="N", help=help)
    if old:
        parser.add_argument(old, dest="workers", type=int, action=RenamedFlag, new="--workers")


def given_options(options: argparse.Namespace, names: Sequence[str]) -> Mapping[str, Any]:
    """Those of the named options that were given: the others stay at the preset's value."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}
