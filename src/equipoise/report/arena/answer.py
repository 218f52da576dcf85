"""The first sentences of an arena's page, and where each balancer is best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.results.arena import ArenaResults, CellResult

LEVEL_SHARE = 0.02
"""two imbalances are level when they differ by less than this share of the smaller one"""


class Standing(NamedTuple):
    """How a balancer did over all streams, at its best rate for each."""

    balancer: str
    level: int
    """streams on which it is the most even, or level with that"""
    over_floor: float | None
    """geometric mean; None where a floor is 0"""


def arena_answer(cells: ArenaResults) -> str:
    """Who leaves the loads most even, how far ahead of the next, and what a replay cannot show."""
    said = _answer_one_stream(cells) if len(cells.streams) == 1 else _answer_many_streams(cells)
    unfinished = f" {cells.missing} cells are not finished." if cells.missing else ""
    caveat = " In a replay the router does not react; in a training it does."
    return f"{said}{unfinished}{_name_diverged(cells)}{caveat}"


def _name_diverged(cells: ArenaResults) -> str:
    if not cells.diverged:
        return ""
    names = (
        f"{each.balancer}{'' if each.rate is None else f' at {each.rate:g}'} on {each.stream}"
        for each in cells.diverged
    )
    return f" Diverged, and without figures: {', '.join(names)}."


def is_level(row: CellResult, rows: list[CellResult]) -> bool:
    """Whether this cell is the most even of these, or level with it."""
    return row.steady_imbalance <= (1 + LEVEL_SHARE) * min(each.steady_imbalance for each in rows)


def compared_streams(cells: ArenaResults) -> list[str]:
    """The streams that every balancer has finished: on others the first to finish would lead.
    All, where none is.
    """
    whole = [
        stream for stream in cells.streams if len(cells.best_rates(stream)) == len(cells.balancers)
    ]
    return whole or cells.streams


def standings(cells: ArenaResults) -> list[Standing]:
    """Every balancer, the one most often in front first."""
    found = []
    for name in cells.balancers:
        every = [cells.best_rates(stream) for stream in compared_streams(cells)]
        best = [(row, rows) for rows in every for row in rows if row.balancer == name]
        over = [row.over_floor for row, _ in best if row.over_floor is not None]
        known = len(over) == len(best)
        mean = float(np.exp(np.mean(np.log(np.maximum(over, 1e-9))))) if known else None
        found.append(Standing(name, sum(is_level(row, rows) for row, rows in best), mean))
    return sorted(found, key=lambda each: (-each.level, each.over_floor or 0))


def name_cell(row: CellResult) -> str:
    return row.balancer if row.rate is None else f"{row.balancer} at rate {row.rate:g}"


def _answer_one_stream(cells: ArenaResults) -> str:
    rows = sorted(cells.best_rates(cells.streams[0]), key=lambda row: row.steady_imbalance)
    best = rows[0]
    over = (
        "" if best.over_floor is None else f", {best.over_floor:.2f} times what chance alone leaves"
    )
    said = (
        f"On {best.stream}, {name_cell(best)} leaves the loads most even (steady imbalance "
        f"{best.steady_imbalance:.4f}{over}) and keeps {best.affinity_kept:.2%} of the "
        "exact optimum's scores"
    )
    if len(rows) == 1:
        return f"{said}."
    ahead = rows[1].steady_imbalance / best.steady_imbalance - 1 if best.steady_imbalance else None
    more = "" if ahead is None else f", {ahead:+.0%}" if ahead > LEVEL_SHARE else ", level with it"
    return f"{said}; next is {name_cell(rows[1])} ({rows[1].steady_imbalance:.4f}{more})."


def _answer_many_streams(cells: ArenaResults) -> str:
    ranked = standings(cells)
    first, others = ranked[0], [each for each in ranked[1:4] if each.level]
    said = (
        f"Of {len(ranked)} balancers on {len(compared_streams(cells))} streams, each at its best "
        f"rate, {first.balancer} is the most even, or within {LEVEL_SHARE:.0%} of that, on "
        f"{first.level}"
    )
    said += "".join(f", {each.balancer} on {each.level}" for each in others) + "."
    means = [each for each in ranked if each.over_floor is not None]
    if len(means) < 2:
        return said
    near, far = (pick(means, key=lambda each: each.over_floor or 0) for pick in (min, max))
    return (
        f"{said} Over all streams {near.balancer} stays nearest to what chance alone leaves "
        f"({near.over_floor:.2f} times, "
        f"geometric mean) and {far.balancer} furthest from it ({far.over_floor:.1f} times)."
    )
