"""verify: the whole list of statements, on the built-in problems or on a training's trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from equipoise.theorems.contradictions import agreement_verdict, is_finite_record
from equipoise.theorems.evidence import problems
from equipoise.theorems.evidence.draws import draws_of_record
from equipoise.theorems.evidence.journeys import Journey, journeys_of_record
from equipoise.theorems.evidence.runs import run_of_record
from equipoise.theorems.registry import Setting
from equipoise.theorems.statements import all_statements
from equipoise.theorems.verdict import HypothesisError, Verdict, not_applicable
from equipoise.trace import Record, Trace

DAMAGED = "the batches that were kept whole hold numbers that are not finite"
NO_BATCH = "no batch's scores were kept whole: record some with whole=True"
GROUPS = "tokens were limited to groups of experts, so their choice is not top-K of scores + shift"

MOST_DRAWN = 3
"""whole batches of a trace that the statements on drawn batches look at; descents are run on the
last of them"""


def verify(trace: Trace | None = None, *, batches: int = 16) -> list[Verdict]:
    """Every statement: on the built-in problems, or on a trace's whole batches.

    A trace that contradicts itself gets one verdict more, before the others, which does not hold.

    Args:
        trace: of a training that kept some batches whole; None for the built-in problems.
        batches: how many whole batches at most, spread evenly.

    Example:
        >>> verdicts = verify()  # a few seconds
        >>> all(verdict.holds for verdict in verdicts if verdict.applies)
        True
    """
    return list(iterate_verdicts(trace, batches=batches))


def iterate_verdicts(trace: Trace | None = None, *, batches: int = 16) -> Iterator[Verdict]:
    """`verify`, one verdict at a time."""
    silent = ""
    if trace is None:
        sources = _builtin_sources()
    else:
        kept = whole_records(trace, batches)
        if (damage := agreement_verdict(trace, kept)) is not None:
            yield damage
        usable = [(layer, record) for layer, record in kept if is_finite_record(record)]
        sources = _trace_sources(trace, usable)
        silent = GROUPS if trace.groups else _reason_for_silence(kept, usable)
    for each in all_statements():
        if silent:
            yield not_applicable(each.name, silent)
        else:
            yield each(sources[each.evidence.setting])


def _builtin_sources() -> dict[Setting, Any]:
    return {
        Setting.FIXED_SCORES: list(problems.builtin_runs()),
        Setting.DRAWN_BATCHES: list(problems.builtin_draws()),
        Setting.REPEATED_DESCENTS: list(problems.builtin_journeys()),
        Setting.WHOLE_TRAININGS: problems.runs_from_zero(),
    }


def _reason_for_silence(kept: Sequence[object], usable: Sequence[object]) -> str:
    """Why no statement can be checked; "" if there is something to check."""
    if usable:
        return ""
    return DAMAGED if kept else NO_BATCH


def _trace_sources(trace: Trace, kept: list[tuple[str, Record]]) -> dict[Setting, Any]:
    drawn = kept[:: -(-len(kept) // MOST_DRAWN) or 1]
    return {
        Setting.FIXED_SCORES: [run_of_record(record, trace, layer) for layer, record in kept],
        Setting.DRAWN_BATCHES: [draws_of_record(record, trace, layer) for layer, record in drawn],
        Setting.REPEATED_DESCENTS: _Descents(trace.top_k, drawn[::-1]) if kept else trace,
        Setting.WHOLE_TRAININGS: trace,
    }


class _Descents:
    """The descents on one batch, run when the first statement asks for them: on the first of the
    batches whose dual is nowhere flat.
    """

    def __init__(self, top_k: int, batches: Sequence[tuple[str, Record]]) -> None:
        self.top_k, self.batches = top_k, batches

    @cached_property
    def journeys(self) -> list[Journey]:
        *earlier, last = self.batches
        for layer, record in earlier:
            try:
                return journeys_of_record(record, self.top_k, layer)
            except HypothesisError:
                continue
        return journeys_of_record(last[1], self.top_k, last[0])

    def __iter__(self) -> Iterator[Journey]:
        return iter(self.journeys)


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
