"""What `equipoise doctor --precision` shows: a table of layers, margins with the ulps among them,
and a verdict for each precision.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from equipoise.cli.lists import add_list_option
from equipoise.cli.progress import progress_bar
from equipoise.storage.json_files import json_text
from equipoise.storage.output_path import output_path

if TYPE_CHECKING:
    from equipoise.results.router_precision import PrecisionEffect, RouterPrecision

_BAR_WIDTH = 36
_OCTAVES_A_LINE = 2
_SHARES_NOTE = {
    "whole": "Percent of tokens whose experts change. Whole: score function and sum too.",
    "below ulp": "Percent of tokens whose margin is below one ulp.",
}


def add_precision_options(parser: argparse.ArgumentParser) -> None:
    """Options of the doctor that concern precision alone."""
    add_list_option(
        parser,
        "--precision",
        metavar="NAME",
        help="of bf16, fp16, fp32: compute the routers in each, and compare with float64",
    )
    parser.add_argument("--text", metavar="PATH", help="a text file or folder that the model reads")
    parser.add_argument(
        "--allow",
        type=float,
        metavar="SHARE",
        help="of tokens in a layer that may change (default: 0.01)",
    )
    parser.add_argument(
        "--batches", type=int, metavar="N", help="of the text, at most (default: 8 of 4 sequences)"
    )
    parser.add_argument("--page", metavar="FILE", help="write an HTML page too")


def show_precision(options: argparse.Namespace) -> bool:
    """Examine and show. Returns whether a precision changes more than is allowed."""
    from equipoise import router_precision
    from equipoise.cli.arena import check_page_path

    if options.page:
        check_page_path(options.page)
    given = {"allowed": options.allow, "batches": options.batches}
    given = {name: value for name, value in given.items() if value is not None}
    with progress_bar("batches") as advance:
        found = router_precision(
            options.trace or options.folder,
            options.text,
            precisions=options.precision,
            on_batch=lambda: advance(1, options.batches or 8),
            **given,
        )
    if options.json:
        print(json_text(found.as_dict()))
    else:
        _print_precision(found)
    if options.page:
        from equipoise.report.precision.page import write_precision_page

        path = write_precision_page(found, output_path(options.page))
        print(f"the page: {path}", file=sys.stderr if options.json else sys.stdout)
    return found.serious


def _print_precision(found: RouterPrecision) -> None:
    from rich.console import Console

    from equipoise.results.router_precision import SOURCE_NOTES
    from equipoise.results.terminal_table import terminal_table

    console = Console()
    for line in found.verdicts:
        console.print(f"- {line}", highlight=False, markup=False)
    parts = _known_parts(found)
    table = terminal_table(
        ("layer", *(f"{name}\n{part}" for name in found.precisions for part in parts)),
    )
    for layer, label in zip(found.layers, found.labels):
        shares = [
            _percent(layer.effect_of(name), part) for name in found.precisions for part in parts
        ]
        table.add_row(label, *shares)
    console.print(table)
    console.print(_SHARES_NOTE[parts[-1]])
    for line in _margin_lines(found):
        console.print(line, highlight=False, markup=False, no_wrap=True, overflow="crop")
    for source in sorted({layer.source for layer in found.layers}):
        console.print(f"Shares: {SOURCE_NOTES[source]}.", highlight=False)
    for name, reason in found.skipped.items():
        console.print(f"Not examined: {name} ({reason})", highlight=False, markup=False)


def _known_parts(found: RouterPrecision) -> list[str]:
    """The parts that some layer has shares of."""
    parts = ("logits", "bias", "both", "whole")
    effects = [layer.effects[0] for layer in found.layers]
    known = [part for part in parts if any(each.share_of(part) is not None for each in effects)]
    return known or ["below ulp"]


def _percent(effect: PrecisionEffect, part: str) -> str:
    share = effect.share_of(part)
    return "-" if share is None else f"{100 * share:.2f}"


def _margin_lines(found: RouterPrecision) -> Iterator[str]:
    """The histogram of all layers' margins, with each precision's ulp where it lies."""
    from equipoise.results.router_precision import MARGIN_OCTAVES, middle_ulps

    counts = [sum(bins) for bins in zip(*(layer.margins for layer in found.layers))]
    total, ulps = sum(counts), middle_ulps(found)
    lines = []
    for start in range(0, len(counts), _OCTAVES_A_LINE):
        low = 2.0 ** MARGIN_OCTAVES[start]
        high = low * 2**_OCTAVES_A_LINE
        share = sum(counts[start : start + _OCTAVES_A_LINE]) / total
        here = [name for name, ulp in ulps.items() if low <= ulp < high]
        lines.append((low, share, here))
    shown = [place for place, (_, share, here) in enumerate(lines) if share or here]
    most = max(share for _, share, _ in lines)
    yield "Margins of all layers: from, share of tokens. Ulp: the median at these scores."
    for low, share, here in lines[shown[0] : shown[-1] + 1]:
        bar = "█" * round(_BAR_WIDTH * share / most)
        mark = f" <- ulp of {', '.join(here)}" if here else ""
        yield f"{low:8.1e} {share:7.2%} {bar}{mark}".rstrip()
