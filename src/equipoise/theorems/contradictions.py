"""Does a trace agree with itself? A damaged one meets few hypotheses, so statements alone would say
nothing about it.

What a record says of itself (equipoise.trace):

    all numbers are finite                (step sizes are NaN where the rule has none)
    shift_after = shift + step_size gap   up to a constant, where the gap is not 0
    loads are top-K of scores + shift     on a batch kept whole, but for ties

A rule's step size is what the rule says it used (balancing/shift/stated_step_size.py), and is 0
where the gap is 0, even if the shift moved there: that is no damage. Loads are not compared where a
record has neither a shift nor step sizes: some balancers solve each batch, and choose otherwise
than by top-K.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.optimum.arrays import Floats
from equipoise.theorems.evidence.runs import run_of_record
from equipoise.theorems.evidence.ties import ties_explain_loads
from equipoise.theorems.verdict import Verdict
from equipoise.trace import Record, Trace

AGREEMENT = "the trace agrees with itself"
"""name of the verdict that a damaged trace gets before all others"""
_STEP_TOLERANCE = 1e-3
"""of the largest move: step sizes may have been computed in float32, and written in a few digits"""


class Contradiction(NamedTuple):
    """A record that cannot be as it says, and why."""

    layer: str
    step: int
    why: str


def agreement_verdict(trace: Trace, kept: Iterable[tuple[str, Record]]) -> Verdict | None:
    """A verdict that does not hold, if the trace contradicts itself; None if it does not.

    Every record's shifts and loads are looked at, and the scores of the batches `kept` whole.
    """
    found = [*_wrong_updates(trace), *_wrong_batches(trace, kept)]
    if not any(trace.steps(layer) for layer in range(len(trace.layers))):
        return Verdict(AGREEMENT, True, False, -1.0, None, "it holds no record of any step")
    if not found:
        return None
    first = min(found, key=lambda each: each.step)
    number = len({(each.layer, each.step) for each in found})
    why = f"{first.why} (layer {first.layer}); {number} records contradict themselves"
    return Verdict(AGREEMENT, True, False, -float(number), first.step, why)


def is_finite_record(record: Record) -> bool:
    """Whether its shifts and scores are numbers that can be computed with."""
    return all(
        bool(np.isfinite(values).all())
        for values in (record.shift, record.shift_after, record.scores)
    )


def _wrong_updates(trace: Trace) -> Iterator[Contradiction]:
    for layer in trace.layers:
        for record in trace.updates(layer):
            if why := _wrong_update(record, trace):
                yield Contradiction(layer, record.step, why)


def _wrong_update(record: Record, trace: Trace) -> str:
    """What is wrong with shifts, loads and step sizes; "" if nothing is."""
    for name in ("shift", "shift_after"):
        if not np.isfinite(getattr(record, name)).all():
            return f"its {name} is not finite"
    if (record.loads < 0).any():
        return "its loads are below 0"
    if np.isinf(record.step_size).any():
        return "its step_size is infinite"
    gap = _load_gap(record, trace)
    counted = (gap != 0) & np.isfinite(record.step_size)
    if not counted.any():
        return ""
    before, after = record.shift.astype(np.float64), record.shift_after.astype(np.float64)
    expected = (record.step_size * gap)[counted]
    # up to a constant: rules may centre their step, and routing does not see it
    off = float(np.ptp((after - before)[counted] - expected))
    precision = 64 * float(np.finfo(np.result_type(record.shift, np.float32)).eps)
    rounding = max(precision, 2 * _half_precision(record.shift_after))
    size = np.abs(before).max() + np.abs(after).max()
    if off > _STEP_TOLERANCE * np.abs(expected).max() + rounding * size:
        return (
            f"shift_after is not shift + step_size * gap, but off by up to {off:.1e} (or the "
            "target in trace.json is not the one that was followed)"
        )
    return ""


def _load_gap(record: Record, trace: Trace) -> Floats:
    """(E) target load less load, in the record's unit."""
    E, total = record.loads.size, record.loads.sum()
    weights = np.ones(E) if trace.target is None else np.asarray(trace.target, np.float64)
    target = total * weights / weights.sum()
    gap = target - record.loads
    if record.unit == "tokens":
        return gap * trace.top_k / max(total, 1)
    if record.unit == "relative":
        return np.divide(gap, target, out=np.zeros(E), where=target != 0)
    return gap


def _wrong_batches(trace: Trace, kept: Iterable[tuple[str, Record]]) -> Iterator[Contradiction]:
    for layer, record in kept:
        if not np.isfinite(record.scores).all():
            yield Contradiction(layer, record.step, "its scores are not finite")
        elif why := _wrong_loads(record, trace):
            yield Contradiction(layer, record.step, why)


def _wrong_loads(record: Record, trace: Trace) -> str:
    """How the loads differ from the top-K of scores + shift; "" if they do not, or need not be."""
    shifted = record.shift.any() or np.isfinite(record.step_size).any()
    if trace.groups or not shifted or not is_finite_record(record):
        return ""
    [step] = run_of_record(record, trace)
    miscounted = int(np.abs(step.loads - step.before.sum(0)).sum())
    if not miscounted:
        return ""
    size = np.abs(step.scores).max() + np.abs(step.shift).max()
    reach = 4 * step.tiny + 4 * _half_precision(record.scores) * float(size)
    if ties_explain_loads(step.shifted, step.top_k, step.loads, reach):
        return ""
    unsure = int((step.margins <= reach).sum())
    return (
        f"its loads are not those of its scores and shift: {miscounted} off, and {unsure} "
        "near ties do not explain it"
    )


def _half_precision(values: NDArray[Any]) -> float:
    """The precision of bfloat16 or float16, where all values are such numbers: a router or a buffer
    had that type. Else 0.
    """
    if values.dtype == np.float64:
        return 0.0
    # bfloat16 has the first 7 bits of a float32's fraction, float16 the first 10
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    used = int(np.bitwise_or.reduce(bits, axis=None)) & 0xFFFF
    if used & 0x1FFF:
        return 0.0
    return 2.0**-10 if used else 2.0**-7
