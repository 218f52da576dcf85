"""The page of an advice: the paragraph, the forecast of each rule at each rate, and the table."""

from __future__ import annotations

from html import escape
from pathlib import Path

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
from equipoise.results.advice import Advice, RateAdvice

HEADINGS = (
    "balancer", "rate", "as good from", "to", "imbalance", "x chance", "settles after",
    "usual rate", "leaves",
)  # fmt: skip


def write_advice_page(advice: Advice, path: Path) -> Path:
    """Write the page, and the figure's data beside it as CSV."""
    rows = [(each.balancer, *point) for each in advice.rates for point in each.curve]
    sheets = {"advice-rates": csv_sheet(("balancer", "rate", "imbalance"), rows)}
    return save_page(path, advice_page(advice, sheets), sheets)


def advice_page(advice: Advice, sheets: Sheets) -> str:
    """The page's text: a pure function of the advice."""
    values = {
        "title": escape(f"equipoise advise: {advice.stream}"),
        "answer": escape(advice.paragraph()),
        "facts": _facts(advice),
        "rates": wide_table(HEADINGS, "".join(map(_rate_row, advice.rates)), "rates"),
    }
    figures = {
        "floor": advice.floor,
        "rules": [
            {
                "name": each.balancer,
                "curve": each.curve,
                "advised": (each.rate, each.imbalance),
                "usual": (each.usual_rate, each.usual_imbalance),
            }
            for each in advice.rates
        ],
    }
    return fill_page("advice", values, figures, sheets, [each.balancer for each in advice.rates])


def _facts(advice: Advice) -> str:
    chips = (
        ("layers", str(advice.layers)),
        ("batches of each", str(advice.batches)),
        ("steps", f"{advice.steps:,}"),
        ("tokens a batch", f"{advice.tokens:,}"),
    )
    command = f"equipoise advise {advice.stream} --steps {advice.steps} --tokens {advice.tokens}"
    tiles = (
        Tile("Chance alone leaves", f"{advice.floor:.4f}", "<p>mean |load - target| / target</p>"),
        Tile("Variance of loads", f"{advice.inflation:.1f}x", "<p>of independent tokens'</p>"),
        Tile("Drift of p* a step", f"{advice.drift:.2g}", "<p>root mean square over experts</p>"),
        Tile(
            "Drift over chance",
            f"{advice.drift_over_chance:.2g}x",
            f"<p>looking ahead {'can pay' if advice.look_ahead else 'is not worth its cost'}</p>",
        ),
    )
    return chip_list(chips, command) + tile_row(tiles)


def _rate_row(each: RateAdvice) -> str:
    cells = (
        f"{each.rate:.2g}",
        f"{each.low:.2g}",
        f"{each.high:.2g}",
        f"{each.imbalance:.4f}",
        f"{each.over_floor:.2f}",
        f"{each.settles_after:,}",
        f"{each.usual_rate:g}",
        f"{each.usual_imbalance:.4f}",
    )
    figures = "".join(f"<td>{cell}</td>" for cell in cells)
    return f"<tr><td>{scheme_mark(each.balancer)}{escape(each.balancer)}</td>{figures}</tr>"
