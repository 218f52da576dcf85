"""`equipoise verify`: verdicts as a table a person can read, or as JSON."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from equipoise.cli.verb import Verb, add_json_flag
from equipoise.storage.json_files import json_text
from equipoise.storage.optional import import_optional

if TYPE_CHECKING:
    from rich.console import Console

    from equipoise.theorems import Verdict
    from equipoise.trace import Trace

HEADINGS = ("statement", "applies", "holds", "margin", "step", "why")
_TABLE_WIDTH = 120
"""columns of a terminal that a table of six columns needs"""


def _add_verify_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace",
        nargs="?",
        metavar="FOLDER",
        help="of a training, or of a trace (default: the built-in problems)",
    )
    parser.add_argument(
        "--batches",
        type=int,
        default=16,
        help="how many of a trace's whole batches to look at (default: %(default)s)",
    )
    parser.add_argument(
        "--details", action="store_true", help="show every statement with its margin, in a table"
    )
    add_json_flag(parser, "the verdicts as JSON")


def _run_verify_verb(options: argparse.Namespace) -> None:
    """Check everything and print it.

    Exit with 1 if something that applies does not hold, or if the trace contradicts itself.
    """
    from equipoise import verify
    from equipoise.trace import Trace

    trace = None if options.trace is None else Trace.open(options.trace)
    if options.json:
        found = verify(trace, batches=options.batches)
        print(json_text([verdict._asdict() for verdict in found]))
    else:
        found = _show_verdicts(trace, options.batches, options.details)
    if refuted_verdicts(found):
        raise SystemExit(1)


def refuted_verdicts(found: Sequence[Verdict]) -> list[Verdict]:
    """Statements that apply and do not hold; an assumption that does not hold refutes nothing."""
    return [verdict for verdict in found if verdict.refuted]


def _show_verdicts(trace: Trace | None, batches: int, details: bool) -> list[Verdict]:
    import_optional("rich", extra="report")
    from rich.console import Console

    from equipoise.cli.verdict_groups import grouped_lines, verdict_summary
    from equipoise.theorems.verify import iterate_verdicts

    console, found = Console(), []
    with Console(stderr=True).status("checking the statements") as status:
        for verdict in iterate_verdicts(trace, batches=batches):
            found.append(verdict)
            status.update(f"checked {verdict.name}")
    about = "the built-in problems" if trace is None else f"{trace.folder}"
    lines = [verdict_summary(found), f"The paper's statements on {about}."]
    console.print(*lines, "", sep="\n", markup=False, highlight=False, soft_wrap=True)
    if details:
        _show_details(console, found)
    else:
        text = "\n".join(grouped_lines(found, console.width))
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return found


def _show_details(console: Console, found: Sequence[Verdict]) -> None:
    from rich.markup import escape

    from equipoise.results.terminal_table import terminal_table

    if console.width < _TABLE_WIDTH:
        text = "\n".join(narrow_lines(found, console.width))
        console.print(text, markup=False, highlight=False)
        return
    table = terminal_table(HEADINGS, left=("applies", "holds", "why"))
    for verdict in found:
        table.add_row(*(escape(cell) for cell in verdict_cells(verdict)))
    console.print(table)


def narrow_lines(found: Sequence[Verdict], width: int) -> Iterator[str]:
    """The table for a narrow terminal: `why` stands below its statement, not in a sixth column."""
    rows = [HEADINGS, *(verdict_cells(verdict) for verdict in found)]
    widest = [max(len(cells[column]) for cells in rows) for column in range(5)]
    for name, applies, holds, margin, step, why in rows:
        yield (
            f"{name:<{widest[0]}}  {applies:<{widest[1]}}  {holds:<{widest[2]}}  "
            f"{margin:>{widest[3]}}  {step:>{widest[4]}}"
        )
        yield from textwrap.wrap(
            why, max(width - 1, 20), initial_indent="    ", subsequent_indent="    "
        )


def verdict_cells(verdict: Verdict) -> tuple[str, str, str, str, str, str]:
    """A verdict as the table's cells."""
    if not verdict.applies or verdict.margin is None:
        return verdict.name, "no", "-", "-", "-", verdict.why
    holds = "yes" if verdict.holds else "NO"
    # why other steps were left out is long; --json has it
    why = verdict.why.split("; elsewhere")[0]
    return verdict.name, "yes", holds, f"{verdict.margin:.3g}", str(verdict.worst_step), why


VERIFY = Verb(
    "verify",
    help="check the paper's statements, on built-in problems or on a training's trace",
    description="Check every numbered statement of the paper: the verdict, then what does not "
    "hold or does not apply, and why. Exits with 1 if something that "
    "applies does not hold, or if the trace contradicts itself.",
    examples=(
        "equipoise verify",
        "equipoise verify runs/a",
        "equipoise verify run/trace --details",
        "equipoise verify run/trace --json > all.json",
    ),
    add_options=_add_verify_options,
    run=_run_verify_verb,
    extra="report",
)
