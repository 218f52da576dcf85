"""`equipoise agree`: two recordings of experts, and where they differ."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from equipoise.cli.verb import Verb, add_json_flag
from equipoise.storage.json_files import json_text

if TYPE_CHECKING:
    from equipoise.attach.replay.agreement import Agreement, MarginBin

_HEADINGS = ("layer", "tokens", "choices", "tokens that differ", "here first", "margin below")


def _add_agree_options(parser: argparse.ArgumentParser) -> None:
    recording = "a recording of experts (.npz), or a routing trace of Megatron (.jsonl)"
    parser.add_argument("first", metavar="A", help=recording)
    parser.add_argument("second", metavar="B", help="another, of the same tokens")
    add_json_flag(parser)


def _run_agree_verb(options: argparse.Namespace) -> None:
    from equipoise import agree

    found = agree(options.first, options.second)
    if options.json:
        print(json_text(found.as_dict()))
    else:
        _show_agreement(found)


def _show_agreement(found: Agreement) -> None:
    """A line a layer, then where it begins."""
    from rich.console import Console

    from equipoise.results.terminal_table import terminal_table

    table = terminal_table(_HEADINGS)
    for layer in found.layers:
        shares = (layer.choices_differ, layer.tokens_differ, layer.first_differ)
        table.add_row(
            layer.layer,
            f"{layer.tokens:,}",
            *(f"{share:.3%}" for share in shares),
            _largest_margin(layer.margins),
        )
    console = Console()
    console.print(table)
    console.print(_summary_text(found), highlight=False, markup=False)


def _largest_margin(margins: list[MarginBin] | None) -> str:
    """Below which margin all tokens lie that differ."""
    if margins is None:
        return "-"
    edges = [each.high for each in margins if each.differ]
    return f"{max(edges):g}" if edges else ""


def _summary_text(found: Agreement) -> str:
    if found.first is None:
        return "They agree in every token of every layer."
    layer, token, ours, theirs = found.first
    return (
        f"{found.choices_differ:.3%} of choices differ, and {found.tokens_differ:.3%} of tokens in "
        f"some layer. The first difference is in {layer}, token {token}: {ours} and {theirs}.\n"
        "Choices: share that the other did not make. Here first: tokens that differ in no layer "
        "before. Margin: between the last expert chosen and the next; those that differ lie below."
    )


AGREE = Verb(
    "agree",
    help="whether two recordings of a model's experts agree, layer by layer",
    description="Compare the experts that two recordings of the same tokens took (trainer and "
    "engine, bf16 and float32, two commits): per layer the share of choices and of tokens that "
    "differ, by how small a margin where margins were recorded, and where the first difference "
    "appears.",
    examples=(
        "equipoise agree trainer.npz engine.npz",
        "equipoise agree trainer.npz router_trace_rank0.jsonl --json",
    ),
    add_options=_add_agree_options,
    run=_run_agree_verb,
    extra="report",
)
