"""The page of a router's precision: verdicts, shares by layer, margins with the ulp, the table."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from equipoise.report.frame import Tile, chip_list, fill_page, save_page, tile_row, wide_table
from equipoise.report.sheets import Sheets, csv_sheet
from equipoise.results.router_precision import (
    MARGIN_OCTAVES,
    SOURCE_NOTES,
    LayerPrecision,
    PrecisionEffect,
    RouterPrecision,
)

_PARTS = ("logits", "bias", "both", "whole", "below ulp")


def write_precision_page(found: RouterPrecision, path: Path) -> Path:
    """Write the page, and the figures' data beside it as CSV."""
    sheets = _data_sheets(found)
    return save_page(path, precision_page(found, sheets), sheets)


def precision_page(found: RouterPrecision, sheets: Sheets) -> str:
    """The page's text: a pure function of what was found."""
    sources = sorted({SOURCE_NOTES[layer.source] for layer in found.layers})
    values = {
        "title": escape(f"equipoise doctor: precision of the routers of {found.model}"),
        "answer": "<br>".join(map(escape, found.verdicts)),
        "facts": _page_facts(found),
        "what": _changed_part(found),
        "table": _shares_table(found),
        "sources": escape(f"{'; '.join(sources)}.".capitalize()),
    }
    return fill_page("precision", values, _figure_data(found), sheets)


def _page_facts(found: RouterPrecision) -> str:
    first = found.layers[0]
    experts = "" if first.experts is None else f"{first.top_k} of {first.experts}"
    chips = (
        ("layers", str(len(found.layers))),
        ("tokens a layer", f"{first.tokens:,}"),
        ("experts a token", experts),
        ("allowed", f"{found.allowed:.2%} of tokens"),
        ("not examined", ", ".join(found.skipped)),
    )
    return chip_list(chips) + tile_row(_precision_tile(found, name) for name in found.precisions)


def _precision_tile(found: RouterPrecision, name: str) -> Tile:
    worst = found.worst_layer(name)
    share = worst.effect_of(name).largest
    body = (
        f"<p>of tokens change in {escape(worst.layer)}, the worst layer; "
        f"{found.any_layer[name]:.2%} in at least one</p>"
    )
    return Tile(name, f"{share:.2%}", body)


def _changed_part(found: RouterPrecision) -> str:
    """What the lines of the first figure are of."""
    if found.layers[0].source == "margins":
        return "margin below one ulp"
    return "scores" if found.layers[0].source == "scores" else "logits"


def _figure_data(found: RouterPrecision) -> dict[str, object]:
    margins_only = found.layers[0].source == "margins"
    return {
        "labels": found.labels,
        "precisions": found.precisions,
        "allowed": found.allowed,
        "octaves": MARGIN_OCTAVES,
        "computed": not margins_only,
        "shares": {
            "what": _changed_part(found),
            **{
                name: {
                    "logits": _part_by_layer(
                        found, name, "below ulp" if margins_only else "logits"
                    ),
                    "bias": _part_by_layer(found, name, "bias"),
                }
                for name in found.precisions
            },
        },
        "layers": [
            {
                "margins": layer.margins,
                "changed": {each.precision: each.changed_by_margin for each in layer.effects},
                "whole": {each.precision: each.whole_by_margin for each in layer.effects},
                "ulps": {each.precision: each.ulp for each in layer.effects},
            }
            for layer in found.layers
        ],
    }


def _part_by_layer(found: RouterPrecision, precision: str, part: str) -> list[float | None]:
    return [layer.effect_of(precision).share_of(part) for layer in found.layers]


def _shares_table(found: RouterPrecision) -> str:
    heading = ("layer", "precision", "tokens", "margin", "ulp", *_PARTS)
    body = "".join(
        _table_row(layer, effect, found.allowed)
        for layer in found.layers
        for effect in layer.effects
    )
    return wide_table(heading, body, "shares")


def _table_row(layer: LayerPrecision, effect: PrecisionEffect, allowed: float) -> str:
    cells = [
        f"<td>{escape(layer.layer)}</td><td>{effect.precision}</td>",
        _number_cell(layer.tokens, f"{layer.tokens:,}"),
        _number_cell(layer.margin, f"{layer.margin:.1e}"),
        _number_cell(effect.ulp, f"{effect.ulp:.1e}"),
    ]
    for part in _PARTS:
        share = effect.share_of(part)
        if share is None:
            cells.append('<td data-value="">-</td>')
        else:
            bad = share > allowed and part != "below ulp"
            cells.append(_number_cell(share, f"{share:.2%}", "bad" if bad else ""))
    return f"<tr>{''.join(cells)}</tr>"


def _number_cell(value: float, text: str, kind: str = "") -> str:
    return f'<td data-value="{value!r}"{f" class={kind}" * bool(kind)}>{text}</td>'


def _data_sheets(found: RouterPrecision) -> Sheets:
    changed = [
        (layer.layer, effect.precision, *(effect.share_of(part) for part in _PARTS))
        for layer in found.layers
        for effect in layer.effects
    ]
    heading = ("layer", "precision", *_PARTS)
    rows = csv_sheet(heading, changed)
    bins = csv_sheet(("layer", "margin from", "tokens", *found.precisions), _bin_rows(found))
    return {"changed": rows, "margins": bins, "shares": rows}


def _bin_rows(found: RouterPrecision) -> Iterator[tuple[object, ...]]:
    """A row for each layer and octave: tokens, and how many of them change."""
    for layer in found.layers:
        changes = [effect.changed_by_margin for effect in layer.effects]
        for octave, tokens, *changed in zip(MARGIN_OCTAVES, layer.margins, *changes):
            if tokens:
                yield (layer.layer, 2.0**octave, tokens, *changed)
