"""The page of an agreement: the verdict, what differs by layer and by margin, and the table."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.report.frame import Tile, chip_list, fill_page, save_page, tile_row, wide_table
from equipoise.report.sheets import Sheets, csv_sheet

if TYPE_CHECKING:
    from equipoise.attach.replay.agreement_rows import Agreement, LayerAgreement

_MARGINS = """
<h2>By margin <span class="get" data-of="margins"></span></h2>
<p class="control"><label>layer <select id="layer"></select></label></p>
<figure><div class="plot" id="margins"></div></figure>
<p class="note">A margin is how far the last expert chosen lies above the first that is not; the
lower of the two recordings. Rounding loses choices that were won by little: where many differ that
were won by far, something else differs.</p>
"""
_BARS = {
    True: "Rounding: within {ulps:g} ulps of {precision}. Follows: the rest of those that differed "
    "in a layer before, and so came with other hidden states. Other: what is left.",
    False: "Tokens that differ. What a layer does otherwise, all later ones see. With --precision, "
    "rounding is told from other causes.",
}


def write_agreement_page(found: Agreement, names: tuple[str, str], path: Path) -> Path:
    """Write the page of two recordings, and the figures' data beside it as CSV."""
    sheets = _data_sheets(found)
    return save_page(path, agreement_page(found, names, sheets), sheets)


def agreement_page(found: Agreement, names: tuple[str, str], sheets: Sheets) -> str:
    """The page's text: a pure function of what was found."""
    with_margins = any(layer.margins is not None for layer in found.layers)
    bars = _BARS[found.explained is not None]
    values = {
        "title": escape(f"equipoise agree: {names[0]} and {names[1]}"),
        "answer": escape(found.verdict()),
        "facts": _page_facts(found),
        "bars": escape(bars.format(ulps=found.ulps, precision=found.precision)),
        "margins": _MARGINS if with_margins else "",
        "table": _layers_table(found),
    }
    return fill_page("agreement", values, _figure_data(found), sheets)


def _page_facts(found: Agreement) -> str:
    first = found.first
    where = "nowhere" if first is None else f"{first.layer}, token {first.token}"
    chips = (("layers", str(len(found.layers))), ("first difference", where))
    tiles = [
        Tile("Choices", f"{found.choices_differ:.3%}", "<p>that the other did not make</p>"),
        Tile("Tokens", f"{found.tokens_differ:.3%}", "<p>that differ in some layer</p>"),
    ]
    if found.explained is not None:
        rounding, follows, other = found.explained
        tiles.append(
            Tile(
                "Left unexplained",
                f"{other:,}",
                f"<p>of {rounding + follows + other:,} differences; {rounding:,} by rounding to "
                f"{found.precision}, {follows:,} follow one before</p>",
            )
        )
    return chip_list(chips) + tile_row(tiles)


def _figure_data(found: Agreement) -> dict[str, object]:
    layers = found.layers
    if found.explained is None:
        causes = {"differ": [layer.changed for layer in layers]}
    else:
        causes = {
            name: [0 if each.explained is None else each.explained[place] for each in layers]
            for place, name in enumerate(found.explained._fields)
        }
    return {
        "labels": found.labels,
        "tokens": [layer.tokens for layer in layers],
        "causes": causes,
        "bins": _margin_bins(layers),
    }


def _margin_bins(layers: list[LayerAgreement]) -> dict[str, object] | None:
    """Of every layer, in order; one without margins has empty bins."""
    known = next((layer.margins for layer in layers if layer.margins is not None), None)
    if known is None:
        return None
    nothing = [each._replace(tokens=0, differ=0) for each in known]
    bins = [layer.margins or nothing for layer in layers]
    return {
        "labels": [f"{each.low:g} to {each.high:g}" for each in known],
        "layers": [
            {"tokens": [each.tokens for each in some], "differ": [each.differ for each in some]}
            for some in bins
        ],
    }


def _layers_table(found: Agreement) -> str:
    heading = [
        "layer", "tokens", "choices", "tokens that differ", "here first", "largest margin",
        "KL of gates", "moved",
    ]  # fmt: skip
    if found.explained is not None:
        heading += found.explained._fields
    body = "".join(
        f"<tr><td>{escape(layer.layer)}</td>{''.join(_layer_cells(layer))}</tr>"
        for layer in found.layers
    )
    return wide_table(heading, body, "layers")


def _layer_cells(layer: LayerAgreement) -> list[str]:
    gates = layer.gates
    cells = [
        _number_cell(layer.tokens, ","),
        _number_cell(layer.choices_differ, ".3%"),
        _number_cell(layer.tokens_differ, ".3%"),
        _number_cell(layer.first_differ, ".3%"),
        _number_cell(layer.largest_margin, ".1e"),
        _number_cell(None if gates is None else gates.kl, ".1e"),
        _number_cell(None if gates is None else gates.moved, ".2%"),
    ]
    return cells + [_number_cell(each, ",") for each in layer.explained or ()]


def _number_cell(value: float | None, how: str) -> str:
    if value is None:
        return '<td data-value="">-</td>'
    return f'<td data-value="{value!r}">{value:{how}}</td>'


def _data_sheets(found: Agreement) -> Sheets:
    heading = ("layer", "tokens", "choices differ", "tokens differ", "first differ", "margin", "KL")
    rows = [
        (
            layer.layer,
            layer.tokens,
            layer.choices_differ,
            layer.tokens_differ,
            layer.first_differ,
            layer.largest_margin,
            None if layer.gates is None else layer.gates.kl,
            *(layer.explained or ()),
        )
        for layer in found.layers
    ]
    explained = () if found.explained is None else found.explained._fields
    table = csv_sheet((*heading, *explained), rows)
    bins = [(layer.layer, *each) for layer in found.layers for each in layer.margins or ()]
    margins = csv_sheet(("layer", "margin from", "to", "tokens", "differ"), bins)
    return {"differ": table, "layers": table, "margins": margins}
