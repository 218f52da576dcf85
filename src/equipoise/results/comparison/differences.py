"""differences: every scheme against one of them, paired by seed.

All schemes of a seed start from the same weights and see the same batches, so much of what a seed
does is common to them and cancels in the difference. With n seeds the differences d have the
interval

    mean(d) ± t(n - 1, 97.5%) stdev(d) / sqrt(n)       Student's law, n - 1 degrees of freedom

A difference is called significant when it is not 0 at 5% / m, with m schemes compared in that
column (Bonferroni): so all that is said of a column holds together at 95%. One seed has no
interval, and nothing significant.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.results.comparison.rows import SchemeRow

SIGNIFICANCE = 0.05
ROUNDING_SHARE = 1e-12
"""differences below this share of the values themselves are rounding"""
PREFERRED_BASELINE = "deepseek"


@dataclass(frozen=True)
class Difference:
    """One scheme less the other, in one figure."""

    seeds: tuple[str, ...]
    """that both have finished"""
    mean: float
    half: float | None
    """half the width of the 95% interval; None for one seed"""
    chance: float | None
    """p: how often chance alone makes a mean as large"""
    significant: bool

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.half is None else (self.mean - self.half, self.mean + self.half)


def baseline_row(rows: Sequence[SchemeRow]) -> SchemeRow | None:
    """The row others are compared with: deepseek, else the first balanced scheme that has finished,
    else the first.
    """
    done = [row for row in rows if row.seeds]
    orders = (
        [row for row in done if row.name == PREFERRED_BASELINE],
        [row for row in done if row.balanced],
        done,
    )
    return next((found[0] for found in orders if found), None)


def scheme_differences(rows: Sequence[SchemeRow], key: str) -> dict[str, Difference]:
    """By scheme, those that share a seed with the row they are compared with."""
    base = baseline_row(rows)
    if base is None:
        return {}
    found = {
        row.name: paired_difference(row.values_of(key), base.values_of(key))
        for row in rows
        if row is not base
    }
    measured = {name: each for name, each in found.items() if each is not None}
    tests = sum(each.chance is not None for each in measured.values())
    return {name: _after_bonferroni(each, tests) for name, each in measured.items()}


def paired_difference(ours: dict[str, float], theirs: dict[str, float]) -> Difference | None:
    """Over the seeds both have; `significant` as if nothing else were compared."""
    seeds = tuple(seed for seed in ours if seed in theirs)
    if not seeds:
        return None
    found = [ours[seed] - theirs[seed] for seed in seeds]
    rounding = ROUNDING_SHARE * max(
        abs(value) for seed in seeds for value in (ours[seed], theirs[seed])
    )
    mean = statistics.fmean(found)
    if len(seeds) == 1 or not math.isfinite(mean):
        return Difference(seeds, mean, None, None, False)
    error = statistics.stdev(found) / math.sqrt(len(seeds))
    half, chance = _student(
        0.0 if abs(mean) <= rounding else mean, 0.0 if error <= rounding else error, len(seeds) - 1
    )
    return Difference(seeds, mean, half, chance, chance < SIGNIFICANCE)


def significant_best(rows: Sequence[SchemeRow], key: str) -> str | None:
    """The scheme with the least of a figure, if it is significantly below each of the others
    (Bonferroni over them); None if that is not known.
    """
    means = {row.name: mean for row in rows if (mean := row.mean_of(key)) is not None}
    if len(means) < 2:
        return None
    best = min(means, key=lambda name: means[name])
    values = {row.name: row.values_of(key) for row in rows}
    against = [paired_difference(values[best], values[name]) for name in means if name != best]
    below = (
        each is not None
        and each.mean < 0
        and each.chance is not None
        and each.chance * len(against) < SIGNIFICANCE
        for each in against
    )
    return best if all(below) else None


def _student(mean: float, error: float, freedom: int) -> tuple[float, float]:
    """Half the interval's width, and p. Where seeds do not differ at all, any difference is certain
    and 0 is none.
    """
    from scipy.special import stdtr, stdtrit

    if error == 0:
        return 0.0, 1.0 if mean == 0 else 0.0
    return float(stdtrit(freedom, 1 - SIGNIFICANCE / 2) * error), float(
        2 * stdtr(freedom, -abs(mean) / error)
    )


def _after_bonferroni(found: Difference, tests: int) -> Difference:
    significant = found.chance is not None and found.chance * tests < SIGNIFICANCE
    return Difference(found.seeds, found.mean, found.half, found.chance, significant)
