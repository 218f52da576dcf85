"""Completion of words in a shell: a script made from the parsers, so that it has every flag.

    source <(equipoise --completion bash)      # in ~/.bashrc
    source <(equipoise --completion zsh)       # in ~/.zshrc

Verbs, flags and the choices of a flag are completed; everything else as a file. The script starts
no Python.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

SHELLS = ("bash", "zsh")

_SCRIPT = """\
_equipoise() {
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"
  local verb="${COMP_WORDS[1]}" words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ] || { [ "$COMP_CWORD" -eq 2 ] && [ "$verb" = help ]; }; then
    words=@VERBS@
  else
    case "$verb $prev" in
@CHOICES@
    esac
    if [ -z "$words" ] && [ "${cur#-}" != "$cur" ]; then
      case "$verb" in
@FLAGS@
      esac
    fi
  fi
  if [ -n "$words" ]; then COMPREPLY=( $(compgen -W "$words" -- "$cur") ); fi
}
complete -o default -F _equipoise equipoise
"""
_ZSH_FIRST = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"


class PrintCompletion(argparse.Action):
    """--completion SHELL: print the script, and exit."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print((_ZSH_FIRST if values == "zsh" else "") + completion_script(parser), end="")
        parser.exit()


def completion_script(parser: argparse.ArgumentParser) -> str:
    """The script for bash, which zsh reads too."""
    verbs = next(
        action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    flags = {name: list(_flags_of(name, verb)) for name, verb in verbs.items()}
    choices = [
        (name, flag, action.choices)
        for name, verb in verbs.items()
        for action in verb._actions
        if action.choices
        for flag in action.option_strings
    ]
    return (
        _SCRIPT.replace("@VERBS@", shlex.quote(" ".join([*verbs, "help", "--help", "--version"])))
        .replace("@CHOICES@", "\n".join(_choice_line(*each) for each in choices))
        .replace(
            "@FLAGS@", "\n".join(f"{name}) {_set_words(each)};;" for name, each in flags.items())
        )
    )


def _choice_line(verb: str, flag: str, choices: Mapping[str, Any]) -> str:
    return f'"{verb} {flag}") {_set_words(map(str, choices))};;'


def _set_words(words: Any) -> str:
    return f"words={shlex.quote(' '.join(words))}"


def _flags_of(name: str, verb: argparse.ArgumentParser) -> Iterator[str]:
    """A verb's flags; those of `train` are the fields of its Config."""
    if name == "train":
        yield from ("--help", "--config", "--json", "--measure")
        yield from _config_flags()
    for action in verb._actions:
        if action.help != argparse.SUPPRESS:
            yield from action.option_strings


def _config_flags() -> Iterator[str]:
    from equipoise.model.config import ModelConfig
    from equipoise.training.config import Config

    for prefix, kind in (("--", Config), ("--model.", ModelConfig)):
        for field in dataclasses.fields(kind):
            if field.name != "model":
                yield prefix + field.name.replace("_", "-")
