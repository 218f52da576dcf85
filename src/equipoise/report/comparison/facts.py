"""What stands on top of a comparison's page: chips with what was done, and four tiles.

A tile has no winner: its large figure is a range over the balanced schemes, or says what is known
of a difference; every scheme's own figure unfolds below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from equipoise.report.comparison.figures import over_chance
from equipoise.report.comparison.maps import kept_figures
from equipoise.report.frame import Tile, chip_list, scheme_mark, tile_row
from equipoise.results.columns import TRAINING_IDLE, VALIDATION_LOSS
from equipoise.results.comparison.differences import baseline_row, scheme_differences
from equipoise.results.comparison.rows import ComparisonResults, SchemeRuns
from equipoise.results.over_seeds import NOT_MEASURED

DEVICE_HOURS = 1000
"""that idle time is told of"""


class SchemeLine(NamedTuple):
    """A scheme's line in a tile."""

    scheme: SchemeRuns
    value: float | None
    """what the range on top is made of"""
    text: str


def comparison_facts(results: ComparisonResults, price: float | None = None) -> str:
    """Chips and tiles as HTML.

    Args:
        results: the comparison.
        price: of a device hour, to tell idle time in money too; in any currency.
    """
    some = [scheme for scheme in results.schemes if scheme.runs]
    if not some:
        return chip_list(_chips(results, some), repeat_command(results))
    makers: tuple[Callable[[], Tile], ...] = (
        lambda: _chance_tile(some),
        lambda: _layer_tile(some),
        lambda: _idle_tile(some, price),
        lambda: _loss_tile(results, some),
    )
    tiles = tile_row(make() for make in makers)
    return chip_list(_chips(results, some), repeat_command(results)) + tiles


def repeat_command(results: ComparisonResults) -> str:
    """What to type for the same comparison, as far as the results tell."""
    some = [run for scheme in results.schemes for run in scheme.runs]
    first = some[0]["result"] if some else None
    corpus = first.get("corpus") if first else None
    data = f" --data {corpus}" if corpus and corpus != "docstrings" else ""
    settings = f"--preset {results.preset} --steps {results.steps}{data}"
    if len(results.schemes) == 1 and len(results.seeds) == 1:
        balancer = results.rows[0].about.get("balancer", results.rows[0].name)
        return f"equipoise train {settings} --balancer {balancer} --seed {results.seeds[0]}"
    names = " ".join(row.name for row in results.rows)
    settled = any("settled_loss" in run["measured"] for run in some)
    seeds = f"--seeds {len(results.seeds)}{' --settled' if settled else ''}"
    return f"equipoise compare {settings} {seeds} --schemes {names}"


def _chips(results: ComparisonResults, some: Sequence[SchemeRuns]) -> Iterable[tuple[str, str]]:
    yield "model", _model_words(results, some)
    yield "steps", f"{results.steps:,}"
    yield "seeds", str(max((len(scheme.runs) for scheme in some), default=0))
    if some:
        result = some[0].runs[0]["result"]
        yield "corpus", result.get("corpus", "")
        yield "tokens", f"{result['tokens']:,} a run" if "tokens" in result else ""
        yield "equipoise", result.get("versions", {}).get("equipoise", "")
    yield "finished", results.finished or ""


def _model_words(results: ComparisonResults, some: Sequence[SchemeRuns]) -> str:
    if not some:
        return results.preset
    words, result = [results.preset], some[0].runs[0]["result"]
    if "parameters" in result:
        words.append(f"{result['parameters'] / 1e6:.3g} M parameters")
    if loads := kept_figures(some[0]).get("loads"):
        words.append(f"{len(loads)} MoE layers of {len(loads[0]['z'])} experts")
    return ", ".join(words)


def _chance_tile(some: Sequence[SchemeRuns]) -> Tile:
    lines = []
    for scheme in some:
        over = over_chance(scheme)
        spread = "" if over.spread is None else f" ± {over.spread:.1f}"
        text = "-" if over.mean is None else f"{over.mean:.1f}{spread}x"
        lines.append(SchemeLine(scheme, over.mean, text))
    note = "validation imbalance over what chance alone leaves on as many sequences"
    return _range_tile("Imbalance, in multiples of chance", lines, "{:.1f}", "x", note)


def _layer_tile(some: Sequence[SchemeRuns]) -> Tile:
    lines = []
    for scheme in some:
        layers = [run["result"].get("layers", {}).get("max_violation") for run in scheme.runs]
        known = [each for each in layers if each]
        if not known:
            lines.append(SchemeLine(scheme, None, "-"))
            continue
        fullest = 1 + np.mean(known, axis=0)
        worst = int(fullest.argmax())
        text = f"{fullest[worst]:.2f}x in {_layer_name(scheme, worst)}"
        lines.append(SchemeLine(scheme, float(fullest[worst]), text))
    note = "load of the fullest expert over its target, in the layer where it is largest"
    return _range_tile("Worst layer", lines, "{:.2f}", "x target", note)


def _layer_name(scheme: SchemeRuns, place: int) -> str:
    loads = kept_figures(scheme).get("loads", [])
    return loads[place]["name"] if place < len(loads) else f"MoE layer {place + 1}"


def _idle_tile(some: Sequence[SchemeRuns], price: float | None) -> Tile:
    lines = []
    for scheme in some:
        figure = scheme.row.figures.get(TRAINING_IDLE.key, NOT_MEASURED)
        hours = None if figure.mean is None else DEVICE_HOURS * figure.mean
        spread = "" if figure.spread is None else f" ± {DEVICE_HOURS * figure.spread:.0f}"
        text = "-" if hours is None else f"{hours:.0f}{spread} h"
        if hours is not None and price is not None:
            text += f" ({hours * price:,.0f} in money)"
        lines.append(SchemeLine(scheme, hours, text))
    note = (
        f"of {DEVICE_HOURS:,} device hours spent in experts, over the whole training: 8 devices, "
        "each waits for the fullest"
    )
    tile = _range_tile("Idle device hours", lines, "{:.0f}", " h", note)
    known = [line.value for line in _balanced(lines) if line.value is not None]
    if price is None or not known:
        return tile
    low, high = (f"{price * value:,.0f}" for value in (min(known), max(known)))
    money = low if low == high else f"{low} to {high}"
    said = f"<p><b>{money}</b> in money, at {price:g} a device hour</p>"
    return tile._replace(body=said + tile.body)


def _loss_tile(results: ComparisonResults, some: Sequence[SchemeRuns]) -> Tile:
    base = baseline_row(results.rows)
    found = scheme_differences(results.rows, VALIDATION_LOSS.key)
    name = f"Loss against {base.label if base else 'others'}"
    lines = [
        SchemeLine(
            scheme,
            each.mean,
            VALIDATION_LOSS.change(each.mean, each.half) + ("*" if each.significant else ""),
        )
        for scheme in some
        if (each := found.get(scheme.row.name)) is not None
    ]
    if not lines:
        return Tile(name, "-", "<p>nothing to compare with</p>")
    judged = [each for each in found.values() if each.half is not None]
    sure = sum(each.significant for each in judged)
    if not judged:
        value, note = "not known", "one seed has no interval: --seeds 5 gives one"
    else:
        value = f"{sure} of {len(judged)} differ" if sure else "no difference known"
        note = "validation loss, 95% interval paired by seed; * significant (Bonferroni)"
    return Tile(name, value, _lines_html(lines, note))


def _balanced(lines: Sequence[SchemeLine]) -> Sequence[SchemeLine]:
    return [line for line in lines if line.scheme.row.balanced] or lines


def _range_tile(name: str, lines: Sequence[SchemeLine], form: str, unit: str, note: str) -> Tile:
    """The range over the balanced schemes, and beside it what is not balanced."""
    balanced = _balanced(lines)
    known = [line.value for line in balanced if line.value is not None]
    if not known:
        return Tile(name, "-", _lines_html(lines, note))
    low, high = form.format(min(known)), form.format(max(known))
    value = (low if low == high else f"{low} to {high}") + unit
    others = [line for line in lines if line not in balanced and line.value is not None]
    beside = "".join(
        f"<p>{escape(line.scheme.label)}: <b>{escape(line.text)}</b></p>" for line in others
    )
    return Tile(name, value, beside + _lines_html(lines, note))


def _lines_html(lines: Sequence[SchemeLine], note: str) -> str:
    rows = "".join(
        f"<tr><td>{scheme_mark(line.scheme.row.name)}{escape(line.scheme.label)}</td>"
        f"<td>{escape(line.text)}</td></tr>"
        for line in lines
    )
    return (
        f"<p>{escape(note)}</p><details><summary>each scheme</summary>"
        f"<table><tbody>{rows}</tbody></table></details>"
    )
