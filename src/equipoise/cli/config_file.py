"""--config: a YAML or TOML file of a verb's options. What is also given as a flag is the flag's.

    # demo.yaml                       # demo.toml
    steps: 50                         steps = 50
    balancers: [deepseek, quantile]   balancers = ["deepseek", "quantile"]

The file's values become the defaults of the parser, so that argparse itself lets flags win.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from equipoise.cli.lists import flatten_list
from equipoise.storage.settings_files import read_settings
from equipoise.storage.suggestions import did_you_mean

CONFIG_HELP = "a YAML or TOML file of these options, by name; flags win"
_NO_OPTIONS = ("help", "config")


class VerbParser(argparse.ArgumentParser):
    """The parser of a verb, which reads the file of --config before it reads flags."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        # `train` reads its own file
        takes_file = any(action.dest == "config" for action in self._actions)
        path = _config_path(args or ()) if takes_file else None
        try:
            if path is not None:
                use_config_file(self, path)
        except (OSError, ValueError, ModuleNotFoundError) as error:
            self.error(str(error))
        found, rest = super().parse_known_args(args, namespace)
        if getattr(found, "config", None) != path:
            self.error("write --config in full: it is read before all other flags")
        return found, rest


def use_config_file(parser: argparse.ArgumentParser, path: str) -> None:
    """Make the values of a file the parser's defaults."""
    options = _options_by_name(parser)
    for name, value in read_settings(path).items():
        action = options.get(name.replace("-", "_"))
        if action is None:
            known = sorted({each.dest for each in options.values()})
            raise ValueError(
                f"{path}: no option {name!r}{did_you_mean(name.replace('-', '_'), known)}: there "
                f"are {', '.join(known)}"
            )
        if value is None:
            continue
        action.default = _checked_value(action, value, f"{path}: {name}")
        action.required = False
        if not action.option_strings and action.nargs is None:
            # a word that had to be given need not be any more
            action.nargs = "?"


def _config_path(arguments: Sequence[str]) -> str | None:
    """The file that --config names, if any."""
    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    scan.add_argument("--config")
    words = list(arguments)
    if not any(word == "--config" or word.startswith("--config=") for word in words):
        return None
    if words[-1] == "--config":
        # the parser itself says what is missing
        return None
    return scan.parse_known_args(words)[0].config


def _options_by_name(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Every option by its name in Python and by its flags; old spellings are left out."""
    found: dict[str, argparse.Action] = {}
    for action in parser._actions:
        if action.dest in _NO_OPTIONS or action.help == argparse.SUPPRESS:
            continue
        for flag in action.option_strings:
            found[flag.lstrip("-").replace("-", "_")] = action
        found[action.dest] = action
    return found


def _checked_value(action: argparse.Action, value: Any, where: str) -> Any:
    """A value of a file as the flag would have made it."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError(f"{where} must be true or false, not {value!r}")
        return value
    if action.nargs in ("+", "*"):
        values = value if isinstance(value, list) else [value]
        return flatten_list([_parse_value(action, each, where) for each in values])
    return _parse_value(action, value, where)


def _parse_value(action: argparse.Action, value: Any, where: str) -> Any:
    if isinstance(value, bool | list | dict):
        raise ValueError(f"{where} must be one value, not {value!r}")
    try:
        parsed = action.type(str(value)) if callable(action.type) else str(value)
    except (ValueError, TypeError, argparse.ArgumentTypeError):
        kind = getattr(action.type, "__name__", "value")
        raise ValueError(f"{where} must be of the kind {kind}, not {value!r}") from None
    if action.choices is not None and parsed not in action.choices:
        raise ValueError(f"{where} must be {' or '.join(map(str, action.choices))}, not {value!r}")
    return parsed
