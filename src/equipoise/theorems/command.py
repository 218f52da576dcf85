"""The body of `equipoise verify`: verdicts as a table a person can read, or as JSON."""

from __future__ import annotations

import json
import os

from equipoise.storage.optional import import_optional
from equipoise.theorems.verdict import Verdict
from equipoise.theorems.verify import verdicts
from equipoise.trace import Trace


def run(folder: str | os.PathLike[str] | None, *, as_json: bool = False, batches: int = 16) -> bool:
    """Check everything, print it, and say whether all that applies holds."""
    trace = None if folder is None else Trace.open(folder)
    if as_json:
        found = list(verdicts(trace, batches=batches))
        print(json.dumps([verdict._asdict() for verdict in found], indent=2))
    else:
        found = _shown(trace, batches)
    return not refuted(found)


def refuted(found: list[Verdict]) -> list[Verdict]:
    """Those that apply and do not hold."""
    return [verdict for verdict in found if verdict.applies and not verdict.holds]


def _shown(trace: Trace | None, batches: int) -> list[Verdict]:
    import_optional("rich", extra="report")
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, found = Console(), []
    with Console(stderr=True).status("checking the statements") as status:
        for verdict in verdicts(trace, batches=batches):
            found.append(verdict)
            status.update(f"checked {verdict.name}")
    about = "the built-in problems" if trace is None else f"{trace.folder}"
    table = Table(title=f"The paper's statements on {escape(about)}", title_justify="left")
    table.add_column("statement")
    table.add_column("applies")
    table.add_column("holds")
    table.add_column("margin", justify="right")
    table.add_column("step", justify="right")
    table.add_column("why")
    for verdict in found:
        table.add_row(*(escape(cell) for cell in row(verdict)))
    console.print(table)
    console.print(summary(found))
    return found


def row(verdict: Verdict) -> tuple[str, str, str, str, str, str]:
    """A verdict as the table's cells."""
    if not verdict.applies or verdict.margin is None:
        return verdict.name, "no", "-", "-", "-", verdict.why
    holds = "yes" if verdict.holds else "NO"
    why = verdict.why.split("; elsewhere")[
        0
    ]  # why other steps were left out is long; --json has it
    return verdict.name, "yes", holds, f"{verdict.margin:.3g}", str(verdict.worst_step), why


def summary(found: list[Verdict]) -> str:
    applied, wrong = sum(verdict.applies for verdict in found), len(refuted(found))
    return f"{applied} of {len(found)} apply; " + (
        f"{wrong} do not hold" if wrong else "all of them hold"
    )
