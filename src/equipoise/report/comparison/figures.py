"""The data of a comparison's figures, which comparison.js draws (data_sheets.py has it as CSV)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypedDict

from equipoise.report.comparison.curves import (
    FloorLevel,
    SchemeCurve,
    chance_floors,
    loss_differences,
    scheme_curve,
)
from equipoise.report.comparison.maps import (
    Ridges,
    SchemeLoads,
    common_ridges,
    kept_figures,
    scheme_loads,
)
from equipoise.results.comparison.condense import round_figure
from equipoise.results.comparison.differences import baseline_row
from equipoise.results.comparison.rows import ComparisonResults, SchemeRuns
from equipoise.results.over_seeds import OverSeeds


class NamedScheme(TypedDict):
    name: str
    label: str


class PricePoint(TypedDict):
    """How far a scheme's shift is from an optimal one, against how uneven it leaves the loads."""

    scheme: str
    label: str
    gap: float
    gap_spread: float | None
    over: float
    """validation imbalance over what chance leaves"""
    over_spread: float | None


class ComparisonFigures(TypedDict):
    """Plotly reads a little HTML in its texts, so labels are escaped."""

    schemes: list[NamedScheme]
    baseline: str | None
    """the label of the scheme others are compared with"""
    imbalance: list[SchemeCurve]
    floors: list[FloorLevel]
    loss: list[SchemeCurve]
    difference: list[SchemeCurve]
    loads: list[SchemeLoads]
    scores: Ridges
    shifts: Ridges
    price: list[PricePoint]


def comparison_figures(results: ComparisonResults) -> ComparisonFigures:
    some, base = [each for each in results.schemes if each.runs], baseline_row(results.rows)
    points = [price_point(scheme) for scheme in some]
    return {
        "schemes": [{"name": each.row.name, "label": escape(each.label)} for each in some],
        "baseline": None if base is None else escape(base.label),
        "imbalance": [scheme_curve(scheme, "imbalance") for scheme in some],
        "floors": chance_floors(some),
        "loss": [scheme_curve(scheme, "loss") for scheme in some],
        "difference": loss_differences(results),
        "loads": _known_loads(some),
        "scores": common_ridges(some, "scores"),
        "shifts": common_ridges(some, "shifts"),
        "price": [point for point in points if point is not None],
    }


def over_chance(scheme: SchemeRuns) -> OverSeeds:
    """Validation imbalance in multiples of what chance leaves, by seed."""
    floors = scheme.row.values_of("floor")
    return OverSeeds.of_values(
        {
            seed: value / floors[seed]
            for seed, value in scheme.row.values_of("imbalance").items()
            if floors.get(seed)
        }
    )


def price_point(scheme: SchemeRuns) -> PricePoint | None:
    """None where a run was not measured."""
    over, gap = over_chance(scheme), scheme.row.figures.get("dual_gap")
    if over.mean is None or gap is None or gap.mean is None:
        return None
    return {
        "scheme": scheme.row.name,
        "label": escape(scheme.label),
        "gap": float(f"{100 * gap.mean:.5g}"),
        "gap_spread": round_figure(None if gap.spread is None else 100 * gap.spread),
        "over": float(f"{over.mean:.5g}"),
        "over_spread": round_figure(over.spread),
    }


def _known_loads(some: Sequence[SchemeRuns]) -> list[SchemeLoads]:
    return [scheme_loads(scheme) for scheme in some if kept_figures(scheme).get("loads")]
