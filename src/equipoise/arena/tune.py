"""tune: which rule and rate suit a stream, and whether the evidence is more than noise.

The best of many cells looks better than it is, since chance helped to choose it. So cells are
chosen on the first half of the steady steps and judged on the second. The two best rules are
compared step by step on the same batches; successive steps are not independent, so the interval of
the mean difference comes from a bootstrap of blocks of steps. A rule is recommended only if the
whole interval speaks for it: if 0 lies inside, the two cannot be told apart; if the whole interval
speaks for the other one, the halves contradict each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.arena.contest import contest, plan_cells
from equipoise.arena.run_arena import CellProgress, no_progress
from equipoise.arena.streams.catalogue import find_streams
from equipoise.balancing import method_spec, method_specs
from equipoise.results.arena import CellResult, DivergedCell
from equipoise.storage.renamed import old_names

INTERVAL_DRAWS = 2000
FEWEST_STEPS = 24
"""a third of them are steady, and half of those are judged: fewer give no interval"""

__getattr__ = old_names(__name__, {"advise": "recommend", "Advice": "Recommendation"})


@dataclass(frozen=True)
class Recommendation:
    """Which rule came first, which came next, and whether that is enough to recommend the first."""

    stream: str
    balancer: str
    rate: float | None
    imbalance: float
    """on the steps it was not chosen on"""
    over_floor: float | None
    affinity_kept: float
    next_balancer: str
    next_rate: float | None
    next_imbalance: float
    difference: float
    """next - first on the steps neither was chosen on, relative to the first"""
    low: float
    high: float
    recommended: bool
    """whether the interval of the difference lies above 0: the first is better, beyond noise"""
    within_noise: bool
    """whether the interval contains 0"""
    edge: bool
    """whether the best rate is the last one tried, so that a better one may lie beyond"""
    diverged: tuple[DivergedCell, ...] = ()
    """cells that had no figures to compare"""

    def paragraph(self) -> str:
        """The recommendation, or why there is none, with its evidence and its limits."""
        chance = f", {self.over_floor or 0:.2f} times what chance alone leaves"
        beyond = " Its rate is at the end of those tried: try --rates beyond it."
        first = _name_with_rate(self.balancer, self.rate)
        head = first if self.recommended else f"no recommendation. First was {first}"
        return (
            f"For {self.stream}: {head}. In steady state it "
            f"left an imbalance of {self.imbalance:.4f}{'' if self.over_floor is None else chance},"
            f" and kept {self.affinity_kept:.2%} of the exact optimum's scores. Next came "
            f"{_name_with_rate(self.next_balancer, self.next_rate)} with "
            f"{self.next_imbalance:.4f}, {self.difference:+.1%} (95% interval {self.low:+.1%} to "
            f"{self.high:+.1%}). {self._conclusion()}{beyond if self.edge else ''} Cells were "
            "chosen on one half of the steady steps and judged on the other. A replay cannot know "
            "how the router would have reacted: confirm by a short training."
            + "".join(f" Left out: {cell.sentence()}." for cell in self.diverged)
        )

    def _conclusion(self) -> str:
        """What the interval of the difference says."""
        if self.recommended:
            return "That is more than noise."
        if self.within_noise:
            return "That is within noise: nothing here speaks against the simpler of the two."
        return (
            f"The halves contradict each other: {self.balancer} was the better on the steps it was "
            f"chosen on, {self.next_balancer} on those it was judged on, and by more than noise. "
            "The stream changes: try more --steps."
        )


def tune(
    stream: str,
    *,
    balancers: Sequence[str] = (),
    rates: Sequence[float] | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
    devices: int | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    on_progress: CellProgress = no_progress,
) -> Recommendation:
    """Which balancer and rate suit a stream of scores, with the evidence.

    Args:
        stream: a built-in one by name, or a layer of a trace: FOLDER:LAYER.
        balancers: at least two by name; all causal ones by default that do not
            follow sequences.
        rates, steps, tokens, seed, devices, out, workers, on_progress: as in run_arena.

    Example:
        >>> advice = equipoise.tune("thin-e8", balancers=["none", "curvature"], steps=24, workers=1)
        >>> print(advice.paragraph())
        For thin-e8: curvature, ...
    """
    found = find_streams(stream, seed=seed, steps=steps, tokens=tokens)
    if len(found) > 1:
        # as the caller wrote the folder: a stream's own name is shorter, and no path
        names = ", ".join(f"{stream}:{each.name.rpartition(':')[2]}" for each in found)
        raise ValueError(f"{stream} has several layers: choose one of {names}")
    chosen = balancers or [
        spec.name
        for spec in method_specs("shift")
        if spec.name != "none" and not spec.within_sequences
    ]
    if len(set(chosen)) < 2:
        raise ValueError("tuning compares rules: name at least two, or none for all")
    if found[0].steps < FEWEST_STEPS:
        raise ValueError(
            f"{found[0].name} has {found[0].steps} steps: too few to tell, give at least "
            f"{FEWEST_STEPS}. (A training's trace keeps few batches whole: `equipoise record` "
            "keeps as many as you like)"
        )
    cells = plan_cells(found, chosen, rates, devices=devices)
    diverged: list[DivergedCell] = []
    results = contest(
        cells,
        out=out,
        workers=workers,
        on_cell=lambda n: on_progress(n, len(cells)),
        on_diverged=diverged.append,
    )
    return recommend(results, diverged=diverged)


def recommend(
    results: Sequence[CellResult], seed: int = 0, diverged: Sequence[DivergedCell] = ()
) -> Recommendation:
    """The best rule at its best rate, against the best of the others. Results are of one stream."""
    if len({result.balancer for result in results}) < 2:
        lost = "; ".join(cell.sentence() for cell in diverged)
        raise ValueError(f"fewer than two rules have figures to compare. {lost}")
    chosen: dict[str, CellResult] = {}
    for result in sorted(results, key=lambda each: float(np.mean(_steady_halves(each)[0]))):
        chosen.setdefault(result.balancer, result)
    best, other = list(chosen.values())[:2]
    ours, theirs = _steady_halves(best)[1], _steady_halves(other)[1]
    low, high = _mean_interval(theirs - ours, seed)
    level = float(ours.mean())
    # the level is 0 where every token takes every expert
    unit = level or 1.0
    tried = [
        each.rate for each in results if each.balancer == best.balancer and each.rate is not None
    ]
    return Recommendation(
        stream=best.stream,
        balancer=best.balancer,
        rate=best.rate,
        imbalance=level,
        over_floor=level / best.floor if best.floor else None,
        affinity_kept=best.affinity_kept,
        next_balancer=other.balancer,
        next_rate=other.rate,
        next_imbalance=float(theirs.mean()),
        difference=float((theirs - ours).mean()) / unit,
        low=low / unit,
        high=high / unit,
        recommended=low > 0,
        within_noise=low <= 0 <= high,
        edge=len(tried) > 1
        and best.rate in (min(tried), max(tried))
        and best.rate != method_spec(best.balancer).greatest_rate,
        diverged=tuple(diverged),
    )


def _steady_halves(result: CellResult) -> list[np.ndarray]:
    """The steady steps, cut in the middle."""
    steady = np.asarray(result.imbalance[-max(2, len(result.imbalance) // 3) :])
    return [steady[: len(steady) // 2], steady[len(steady) // 2 :]]


def _mean_interval(series: np.ndarray, seed: int) -> tuple[float, float]:
    """95% of the mean, by blocks of about the square root of the steps, taken in a circle."""
    steps = len(series)
    length = max(1, round(steps**0.5))
    starts = np.random.default_rng(seed).integers(0, steps, (INTERVAL_DRAWS, -(-steps // length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(INTERVAL_DRAWS, -1)[:, :steps] % steps
    low, high = np.quantile(series[places].mean(1), (0.025, 0.975))
    return float(low), float(high)


def _name_with_rate(balancer: str, rate: float | None) -> str:
    if rate is None:
        tried = method_spec(balancer).rates_to_try
        return balancer if tried else f"{balancer}, which has no rate to choose"
    return f"{balancer} at rate {rate:g}"
