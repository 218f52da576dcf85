"""`equipoise agree`: two recordings of experts, and where they differ."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from equipoise.cli.arena import check_page_path
from equipoise.cli.verb import Verb, add_json_flag
from equipoise.storage.json_files import json_text
from equipoise.storage.output_path import output_path

if TYPE_CHECKING:
    from equipoise.attach.replay.agreement_rows import Agreement, LayerAgreement


def _add_agree_options(parser: argparse.ArgumentParser) -> None:
    recording = "a recording of experts (.npz), or a routing trace of Megatron (.jsonl)"
    parser.add_argument("first", metavar="A", help=recording)
    parser.add_argument("second", metavar="B", help="another, of the same tokens")
    parser.add_argument(
        "--precision",
        metavar="NAME",
        help="bf16, fp16 or fp32: tell differences that its rounding explains from others",
    )
    parser.add_argument(
        "--ulps",
        type=float,
        metavar="N",
        help="how many ulps of it both margins may add up to and count as rounding (default: 4)",
    )
    parser.add_argument("--page", metavar="FILE", help="write an HTML page too")
    add_json_flag(parser)


def _run_agree_verb(options: argparse.Namespace) -> None:
    from equipoise import agree

    if options.page:
        check_page_path(options.page)
    if options.ulps is not None and not options.precision:
        raise ValueError("--ulps are those of a precision: name it by --precision bf16")
    ulps = {} if options.ulps is None else {"ulps": options.ulps}
    found = agree(options.first, options.second, precision=options.precision, **ulps)
    if options.json:
        print(json_text(found.as_dict()))
    else:
        _show_agreement(found)
    if options.page:
        from equipoise.report.agreement.page import write_agreement_page

        names = (options.first, options.second)
        path = write_agreement_page(found, names, output_path(options.page))
        print(f"the page: {path}", file=sys.stderr if options.json else sys.stdout)
    if found.serious:
        raise SystemExit(1)


def _show_agreement(found: Agreement) -> None:
    """A line a layer, then where it begins."""
    from rich.console import Console

    from equipoise.results.terminal_table import terminal_table

    headings = ["layer", "tokens", "choices", "differ", "first"]
    headings += ["rounding", "follows", "other"] * (found.explained is not None)
    gates = any(layer.gates is not None for layer in found.layers)
    table = terminal_table([*headings, "margin", *["KL", "moved"] * gates])
    for label, layer in zip(found.labels, found.layers):
        table.add_row(label, *_table_cells(layer, found.explained is not None, gates))
    console = Console()
    console.print(table)
    console.print(found.verdict(), highlight=False, markup=False)
    if found.first is not None:
        console.print(_legend_text(found, gates), highlight=False, markup=False)


def _table_cells(layer: LayerAgreement, explained: bool, gates: bool) -> list[str]:
    shares = (layer.choices_differ, layer.tokens_differ, layer.first_differ)
    cells = [f"{layer.tokens:,}", *(f"{share:.3%}" for share in shares)]
    if explained:
        cells += ["-"] * 3 if layer.explained is None else [f"{each:,}" for each in layer.explained]
    cells.append("-" if layer.largest_margin is None else f"{layer.largest_margin:.1e}")
    if gates:
        distance = layer.gates
        cells += ["-"] * 2 if distance is None else [f"{distance.kl:.1e}", f"{distance.moved:.2%}"]
    return cells


def _legend_text(found: Agreement, gates: bool) -> str:
    lines = [
        "Choices: share that the other did not make. Differ: share of tokens; first: that differ "
        "in no layer before. Margin: the largest that was lost; no choice won by more differs."
    ]
    if found.explained is not None:
        lines.append(
            f"Rounding: tokens that differ within {found.ulps:g} ulps of {found.precision}; "
            "follows: the rest of those that differed in a layer before; other: what is left."
        )
    if gates:
        lines.append(
            "KL: of the gates, over tokens with the same experts. Moved: share of the gates that "
            "went to other experts."
        )
    return " ".join(lines)


AGREE = Verb(
    "agree",
    help="whether two recordings of a model's experts agree, layer by layer",
    description="Compare the experts that two recordings of the same tokens took (trainer and "
    "engine, bf16 and float32, two commits): per layer the share of choices and of tokens that "
    "differ, by how small a margin where margins were recorded, how far the gates lie apart, and "
    "where the first difference appears. With --precision, differences whose margin is within the "
    "rounding of that precision are told from others; exits with 1 if some are left.",
    examples=(
        "equipoise agree trainer.npz engine.npz",
        "equipoise agree trainer.npz engine.npz --precision bf16 --page agreement.html",
        "equipoise agree trainer.npz router_trace_rank0.jsonl --json",
    ),
    add_options=_add_agree_options,
    run=_run_agree_verb,
    extra="report",
)
