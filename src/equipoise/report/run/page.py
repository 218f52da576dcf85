"""The page of a run as one HTML file, or as the frame that a server fills.

report_run("runs/a")      writes runs/a/report.html and runs/a/figures/*.csv, as the run is now
live_page(["a"])          the same page without data: `equipoise watch` sends them
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path

from equipoise.report.frame import Tile, chip_list, fill_page, save_page, tile_row
from equipoise.report.run.describe_run import (
    repeat_command,
    run_facts,
    run_sentence,
    run_tiles,
    scheme_of,
)
from equipoise.report.run.messages import make_message
from equipoise.report.sheets import Sheets, csv_sheet
from equipoise.results.follow.run_follower import RunFollower, RunSnapshot

CURVE_HEADING = (
    "step", "least imbalance", "greatest imbalance", "imbalance", "loss", "idle share"
)  # fmt: skip


def report_run(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the page of a training or a trace, finished or not. Returns the page's path.

    Args:
        folder: of the run.
        out: the page; by default report.html in the folder.
    """
    folder = Path(folder)
    follower = RunFollower(folder.resolve().name, folder, patient=False)
    follower.read_everything()
    layers = range(len(follower.trace.layers))
    run = follower.snapshot(layers)
    if run.troubles and run.last_step is None:
        raise ValueError(f"{folder} has nothing to show: {run.troubles[0]}")
    for trouble in run.troubles:
        warnings.warn(f"the page lacks something of {folder}: {trouble}", stacklevel=2)
    return save_page(Path(out) if out else folder / "report.html", run_page(run), run_sheets(run))


def run_page(run: RunSnapshot) -> str:
    """The page's text: a pure function of the run as it is now."""
    tiles = [Tile(name, value, f"<p>{escape(body)}</p>") for name, value, body in run_tiles(run)]
    facts = chip_list(run_facts(run), repeat_command(run)) + tile_row(tiles)
    values = {
        "title": escape(f"equipoise: {run.name}"),
        "answer": escape(run_sentence(run)),
        "facts": f"<div id=facts>{facts}</div>",
    }
    figures = {"message": make_message([run], {})}
    return fill_page("run", values, figures, run_sheets(run), [scheme_of(run)], plotly=False)


def live_page(names: Sequence[str]) -> str:
    """The page that waits for what a server sends."""
    values = {
        "title": escape(f"equipoise: {', '.join(names)}"),
        "answer": "Waiting for the first figures.",
        "facts": "<div id=facts data-live></div>",
    }
    return fill_page("run", values, {"message": None}, {}, plotly=False)


def run_sheets(run: RunSnapshot) -> Sheets:
    """The figures' data."""
    curve, layers = run.tables.get("curve", []), list(run.layers)
    sheets = {
        "imbalance": csv_sheet(CURVE_HEADING, (row[: len(CURVE_HEADING)] for row in curve)),
        "layers": csv_sheet(
            ("step", *layers), ((row[0], *row[len(CURVE_HEADING) :]) for row in curve)
        ),
        "loss": csv_sheet(("step", "loss", "imbalance", "floor"), run.tables["validation"]),
    }
    for name in ("loads", "shifts"):
        tables = [(layer, run.tables.get(f"{name}:{n}", [])) for n, layer in enumerate(layers)]
        experts = max((len(row) - 1 for _, rows in tables for row in rows), default=0)
        heading = ("layer", "step", *(f"expert {n}" for n in range(experts)))
        sheets[name] = csv_sheet(heading, ((layer, *row) for layer, rows in tables for row in rows))
    return sheets
