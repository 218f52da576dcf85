"""over_seeds: one figure of runs that differ in their seed only: each value, mean and spread.

In the rows of table.json, of a comparison and of a sweep alike, it is spelled

    {"values": {"imbalance": {"0": 0.31, "1": 0.29}, ...},
     "imbalance": 0.30, "imbalance_spread": 0.014, ...}
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class OverSeeds:
    values: dict[str, float] = field(default_factory=dict)
    """seed -> what that run has, for those that have it"""
    mean: float | None = None
    """None where no run has it"""
    spread: float | None = None
    """standard deviation over seeds; None for fewer than two, or where a loss has diverged"""

    @classmethod
    def of_values(cls, values: dict[str, float]) -> OverSeeds:
        if not values:
            return NOT_MEASURED
        # statistics.stdev raises for what is not finite
        some = len(values) > 1 and all(map(math.isfinite, values.values()))
        spread = statistics.stdev(values.values()) if some else None
        return cls(values, statistics.fmean(values.values()), spread)


NOT_MEASURED = OverSeeds()
Figures = Mapping[str, OverSeeds]
"""a row's figures by the key of their column (equipoise.results.columns)"""


def figures_to_json(figures: Figures) -> dict[str, float | None]:
    """Means and spreads as they stand in a row of table.json; `values` is beside them."""
    found: dict[str, float | None] = {}
    for key, figure in figures.items():
        found |= {key: figure.mean, f"{key}_spread": figure.spread}
    return found


def figures_from_json(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, OverSeeds]:
    """The figures of a row of table.json; those of earlier versions have no `values`."""
    values = row.get("values", {})
    return {
        key: OverSeeds(values.get(key, {}), row[key], row.get(f"{key}_spread"))
        for key in keys
        if key in row
    }
