"""The page of a simulation: the answer, hours lost so far, the fullest device, the table."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from equipoise.report.frame import (
    Tile,
    chip_list,
    fill_page,
    save_page,
    scheme_mark,
    tile_row,
    wide_table,
)
from equipoise.report.sheets import Sheets, csv_sheet
from equipoise.results.simulation import BalancerCost, Simulation, hours_text

HEADINGS = (
    "balancer", "rate", "lost, device hours", "+-", "of all", "early", "fullest, first step",
    "fullest, last third", "even after", "money",
)  # fmt: skip
MOST_POINTS = 400
"""of a line: a screen has no more"""


def write_simulation_page(found: Simulation, path: Path) -> Path:
    """Write the page, and each figure's data beside it as CSV."""
    curves = found.fullest
    heading = ("step", *curves)
    steps = range(1, found.settings.steps + 1)
    excess = [np.asarray(each) - 1 for each in curves.values()]
    lost = [lost_so_far(found, name) for name in curves]
    sheets = {
        "simulation-lost": csv_sheet(heading, zip(steps, *lost, strict=True)),
        "simulation-fullest": csv_sheet(heading, zip(steps, *excess, strict=True)),
    }
    return save_page(path, simulation_page(found, sheets), sheets)


def simulation_page(found: Simulation, sheets: Sheets) -> str:
    """The page's text: a pure function of the simulation."""
    settings = found.settings
    values = {
        "title": escape(f"equipoise simulate: {settings.model} on {settings.cluster}"),
        "answer": escape(simulation_answer(found)),
        "facts": _facts(found),
        "balancers": wide_table(HEADINGS, "".join(map(_balancer_row, found.rows)), "balancers"),
    }
    figures = {
        "chance": found.chance - 1,
        "lost": [_line(found, label, lost_so_far(found, label)) for label in found.fullest],
        "excess": [
            _line(found, label, np.asarray(curve) - 1) for label, curve in found.fullest.items()
        ],
    }
    return fill_page("simulation", values, figures, sheets, [row.balancer for row in found.rows])


def simulation_answer(found: Simulation) -> str:
    """Which balancer lost least, and what none at all would have lost."""
    settings, held = found.settings, [row for row in found.rows if row.diverged_after is None]
    if not held:
        return "Every balancer diverged: no figure is of use."
    best, worst = held[0], held[-1]
    text = (
        f"In the first {settings.steps:,} steps of {settings.model} on {settings.cluster}, "
        f"{best.balancer} loses {hours_text(best.lost_device_hours)} device hours to waiting for "
        f"the fullest device, {best.lost_share:.1%} of all"
    )
    if worst is best:
        return f"{text}."
    most = hours_text(worst.lost_device_hours)
    return f"{text}; {worst.balancer} loses {most}, {worst.lost_share:.1%} of all."


def lost_so_far(found: Simulation, label: str) -> np.ndarray:
    """(steps,): device hours lost up to each step."""
    settings = found.settings
    each = settings.waiting_seconds * settings.devices / 3600
    return np.cumsum((np.asarray(found.fullest[label]) - 1) * each)


def _line(found: Simulation, label: str, values: np.ndarray) -> dict[str, object]:
    """Of all steps the first ones, and then fewer and fewer: one axis is logarithmic."""
    steps = len(values)
    near = np.unique(np.rint(np.geomspace(1, steps, MOST_POINTS)).astype(int))
    far = np.unique(np.rint(np.linspace(1, steps, min(steps, MOST_POINTS))).astype(int))
    kept = np.union1d(near, far)
    shown = [None if np.isnan(value) else float(f"{value:.5g}") for value in values[kept - 1]]
    return {"name": label.split(" ")[0], "label": label, "steps": kept.tolist(), "values": shown}


def _facts(found: Simulation) -> str:
    settings = found.settings
    chips = (
        ("layers", f"{settings.layers} of {settings.moe_layers}"),
        ("experts", f"{settings.top_k} of {settings.num_experts}"),
        ("devices", f"{settings.devices:,} in groups of {settings.group}"),
        ("tokens a forward", f"{settings.forward_tokens:,}"),
        ("pool", f"{settings.pool:,} tokens" if settings.pool else "none"),
        ("stream", settings.stream),
        ("seed", str(settings.seed)),
    )
    hours = settings.steps * settings.balanced_seconds * settings.devices / 3600
    share = settings.waiting_seconds / settings.balanced_seconds
    tiles = (
        Tile(
            "A balanced step", f"{settings.balanced_seconds:.3g} s", "<p>from first principles</p>"
        ),
        Tile("Grows with the fullest", f"{share:.0%}", "<p>of it: experts and exchange</p>"),
        Tile("All steps, balanced", f"{hours:,.0f}", "<p>device hours</p>"),
        Tile("Chance alone leaves", f"{found.chance:.3f}x", "<p>on the fullest device</p>"),
    )
    return chip_list(chips) + tile_row(tiles)


def _balancer_row(row: BalancerCost) -> str:
    name = f"<td>{scheme_mark(row.balancer)}{escape(row.balancer)}</td>"
    rate = f"<td>{'-' if row.rate is None else f'{row.rate:g}'}</td>"
    if row.diverged_after is not None:
        return f"<tr>{name}{rate}<td colspan=8>diverged at step {row.diverged_after:,}</td></tr>"
    cells = (
        hours_text(row.lost_device_hours),
        "-" if row.standard_error is None else hours_text(row.standard_error),
        f"{row.lost_share:.1%}",
        hours_text(row.lost_early),
        f"{row.fullest_first:.2f}x",
        f"{row.fullest_last:.3f}x",
        "never" if row.even_after is None else f"{row.even_after:,}",
        "-" if row.lost_money is None else f"{row.lost_money:,.0f}",
    )
    return f"<tr>{name}{rate}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
