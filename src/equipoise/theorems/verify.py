"""verify: the whole list of statements, on the built-in problems or on a training's trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from equipoise.theorems.evidence import problems
from equipoise.theorems.evidence.draws import Draws, draws_of_record
from equipoise.theorems.evidence.program import Run, run_of_record
from equipoise.theorems.statements import band, gradient, lagrangian, movement, regret
from equipoise.theorems.verdict import Verdict
from equipoise.trace import Record, Trace

FIXED: dict[str, Callable[[list[Run]], Verdict]] = {
    "1 change in Lagrangian": lagrangian.change_in_lagrangian,
    "2 switching benefit": lagrangian.switching_benefit,
    "3 pairwise bounds": lagrangian.pairwise_bounds,
    "4 Lagrangian, DeepSeek step": lagrangian.deepseek_lagrangian,
    "5 assignment changes": lagrangian.assignment_changes,
    "6 monotonicity": lagrangian.monotonicity,
    "6 sandwich, free of assumptions": lagrangian.sandwich,
    "7 like switches, like gaps": movement.like_gaps,
    "8 unique movements, u < u-bar": movement.unique_movements,
    "8 movements, M(u)": movement.crowded_movements,
    "8 movements, B_k(p)": movement.bounded_movements,
    **{
        f"9 band stability, {width}": partial(band.band_stability, width=width)
        for width in band.WIDTHS
    },
    "10 uniform dominance": movement.dominance,
    **{f"11 band entry, {width}": partial(band.band_entry, width=width) for width in band.WIDTHS},
}
DRAWN: dict[str, Callable[[list[Draws]], Verdict]] = {
    "12 unbiased gradient": gradient.unbiased_gradient,
    "13 variance and second moment": gradient.gradient_variance,
    "14 second derivative": gradient.second_derivative,
    "14 strong convexity": gradient.strong_convexity,
}
PROJECTED: dict[str, Callable[[list[Run]], Verdict]] = {
    "15 zero-sum projection": gradient.zero_sum_projection
}
REPEATED: dict[str, Callable[[regret.Repeated], Verdict]] = {
    "16 one-step accounting": regret.one_step,
    "17 logarithmic regret": regret.logarithmic_regret,
    "17 regret, variance at p*": regret.regret_at_best,
}
NAMES = (*FIXED, *DRAWN, *PROJECTED, *REPEATED)

NO_BATCH = "no batch's scores were kept whole: record some with whole=True"
GROUPS = "tokens were limited to groups of experts, so their choice is not top-K of scores + shift"


def verify(trace: Trace | None = None, *, batches: int = 16) -> list[Verdict]:
    """Every statement: on the built-in problems, or on a trace's whole batches (at most `batches`,
    spread evenly).

    Example:
        >>> verdicts = verify()  # a few seconds
        >>> all(verdict.holds for verdict in verdicts if verdict.applies)
        True
    """
    return list(verdicts(trace, batches=batches))


def verdicts(trace: Trace | None = None, *, batches: int = 16) -> Iterator[Verdict]:
    """`verify`, one at a time."""
    if trace is None:
        runs, draws = list(problems.runs()), list(problems.draws())
    else:
        kept = whole_records(trace, batches)
        runs = [run_of_record(record, trace, layer) for layer, record in kept]
        draws = [
            draws_of_record(record, trace.top_k) for _, record in kept[:: -(-len(kept) // 3) or 1]
        ]
    silent = "" if runs else NO_BATCH
    if trace is not None and trace.about.get("groups"):
        silent = GROUPS
    if silent:
        yield from (Verdict(name, False, None, None, None, silent) for name in NAMES)
        return
    for check in FIXED.values():
        yield check(runs)
    for sampled in DRAWN.values():
        yield sampled(draws)
    for check in PROJECTED.values():
        yield check(runs)
    for repeated in REPEATED.values():
        yield repeated(problems.journey() if trace is None else trace)


def whole_records(trace: Trace, most: int) -> list[tuple[str, Record]]:
    """The batches kept whole, over all layers, thinned evenly to at most `most`, with their layers'
    names.
    """
    if most < 1:
        raise ValueError(f"batches must be at least 1, not {most}")
    places = [
        (step, layer) for layer in range(len(trace.layers)) for step in trace.whole_steps(layer)
    ]
    places.sort()
    chosen = (
        [places[i * len(places) // most] for i in range(most)] if len(places) > most else places
    )
    return [(trace.layers[layer], trace.record(layer, step)) for step, layer in chosen]
