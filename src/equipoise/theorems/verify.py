"""verify: the whole list of statements, on the built-in problems or on a training's trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from equipoise.theorems.evidence import problems
from equipoise.theorems.evidence.draws import draws_of_record
from equipoise.theorems.evidence.runs import run_of_record
from equipoise.theorems.registry import Setting
from equipoise.theorems.statements import all_statements
from equipoise.theorems.verdict import Verdict, not_applicable
from equipoise.trace import Record, Trace

NO_BATCH = "no batch's scores were kept whole: record some with whole=True"
GROUPS = "tokens were limited to groups of experts, so their choice is not top-K of scores + shift"

MOST_DRAWN = 3
"""whole batches of a trace that the statements on drawn batches look at: each costs an integral"""


def verify(trace: Trace | None = None, *, batches: int = 16) -> list[Verdict]:
    """Every statement: on the built-in problems, or on a trace's whole batches (at most `batches`,
    spread evenly).

    Example:
        >>> verdicts = verify()  # a few seconds
        >>> all(verdict.holds for verdict in verdicts if verdict.applies)
        True
    """
    return list(iterate_verdicts(trace, batches=batches))


def iterate_verdicts(trace: Trace | None = None, *, batches: int = 16) -> Iterator[Verdict]:
    """`verify`, one verdict at a time."""
    sources = _builtin_sources() if trace is None else _trace_sources(trace, batches)
    silent = "" if sources[Setting.FIXED_SCORES] else NO_BATCH
    if trace is not None and trace.groups:
        silent = GROUPS
    for each in all_statements():
        if silent:
            yield not_applicable(each.name, silent)
        else:
            yield each(sources[each.evidence.setting])


def _builtin_sources() -> dict[Setting, Any]:
    return {
        Setting.FIXED_SCORES: list(problems.builtin_runs()),
        Setting.DRAWN_BATCHES: list(problems.builtin_draws()),
        Setting.REPEATED_DESCENTS: problems.builtin_journey(),
    }


def _trace_sources(trace: Trace, batches: int) -> dict[Setting, Any]:
    kept = whole_records(trace, batches)
    drawn = kept[:: -(-len(kept) // MOST_DRAWN) or 1]
    return {
        Setting.FIXED_SCORES: [run_of_record(record, trace, layer) for layer, record in kept],
        Setting.DRAWN_BATCHES: [draws_of_record(record, trace.top_k) for _, record in drawn],
        Setting.REPEATED_DESCENTS: trace,
    }


def whole_records(trace: Trace, most: int) -> list[tuple[str, Record]]:
    """(layer, batch) of the batches kept whole, thinned evenly to at most `most`."""
    if most < 1:
        raise ValueError(f"batches must be at least 1, not {most}")
    places = [
        (step, layer) for layer in range(len(trace.layers)) for step in trace.whole_steps(layer)
    ]
    places.sort()
    if len(places) > most:
        places = [places[i * len(places) // most] for i in range(most)]
    return [(trace.layers[layer], trace.record(layer, step)) for step, layer in places]
