"""messages: runs as the page reads them, whole or as what has changed.

A message is JSON:

    {"runs": [{"name": ..., "sentence": ..., "chips": ..., "tiles": ..., "layers": ...}, ...],
     "tables": [{"run": 0, "table": "curve", "keep": 120, "rows": [[121, ...], ...]}, ...],
     "note": ...}

`keep` is how many rows of the table the page keeps; `rows` follow them. So a training that runs
sends its last rows, one whose bins were joined or that began anew sends all, and neither side has
to know why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from equipoise.report.run.describe_run import (
    repeat_command,
    run_facts,
    run_label,
    run_sentence,
    run_tiles,
    scheme_of,
    times_chance,
    total_steps,
)
from equipoise.results.follow.run_follower import RunSnapshot
from equipoise.results.follow.step_bins import Row, shown_figure
from equipoise.results.run import VerdictRow
from equipoise.results.scheme_style import SchemeStyle, styles_side_by_side


class RunView(TypedDict):
    """A run without its tables. All text is plain: the page never reads it as HTML."""

    name: str
    label: str
    style: dict[str, str]
    state: str
    sentence: str
    chips: list[tuple[str, str]]
    command: str
    tiles: list[tuple[str, str, str]]
    layers: list[str]
    steps: int | None
    chance: float | None
    times: float | None
    sampled: int
    troubles: list[str]
    error: str | None
    verdicts: list[VerdictRow]


class TableChange(TypedDict):
    run: int
    table: str
    keep: int
    rows: list[Row]


class Message(TypedDict):
    runs: list[RunView]
    tables: list[TableChange]
    note: str


SentTables = dict[tuple[int, str], list[Row]]
"""what a reader has: run and table -> rows"""


def make_message(runs: Sequence[RunSnapshot], sent: SentTables, *, left_out: int = 0) -> Message:
    """What a reader lacks who has `sent`, which is brought up to date."""
    changes: list[TableChange] = []
    wanted = {(n, name): rows for n, run in enumerate(runs) for name, rows in run.tables.items()}
    for key in sent.keys() - wanted.keys():
        wanted[key] = []
    for key, rows in wanted.items():
        before = sent.get(key, [])
        keep = _common_rows(before, rows)
        if keep < max(len(before), len(rows)) or key not in sent:
            run, table = key
            changes.append({"run": run, "table": table, "keep": keep, "rows": rows[keep:]})
        sent[key] = rows
    styles = styles_side_by_side([_style_name(run, runs) for run in runs])
    return {
        "runs": [_view_of(run, len(runs) == 1, style) for run, style in zip(runs, styles)],
        "tables": changes,
        "note": _left_out_note(len(runs), left_out),
    }


def _common_rows(before: Sequence[Row], now: Sequence[Row]) -> int:
    for n, (one, other) in enumerate(zip(before, now)):
        if one != other:
            return n
    return min(len(before), len(now))


def _view_of(run: RunSnapshot, alone: bool, style: SchemeStyle) -> RunView:
    chance = None if run.chance is None else shown_figure(run.chance)
    level = times_chance(run)
    return {
        "name": run.name,
        "label": run_label(run) if alone else f"{run.name}: {run_label(run)}",
        "style": style._asdict(),
        "state": run.state,
        "sentence": run_sentence(run),
        "chips": run_facts(run),
        "command": repeat_command(run),
        "tiles": [(tile.name, tile.value, tile.body) for tile in run_tiles(run)],
        "layers": list(run.layers),
        "steps": total_steps(run),
        "chance": chance,
        "times": None if level is None or level.times is None else shown_figure(level.times),
        "sampled": run.sampled_tokens,
        "troubles": list(run.troubles),
        "error": run.error,
        "verdicts": [_finite_verdict(each) for each in run.measured.get("verdicts", [])],
    }


def _finite_verdict(verdict: VerdictRow) -> VerdictRow:
    """JSON has no word for a margin that is not finite."""
    margin = verdict["margin"]
    return {**verdict, "margin": None if margin is None else shown_figure(margin)}


def _style_name(run: RunSnapshot, runs: Sequence[RunSnapshot]) -> str:
    """A scheme has its colour everywhere; two runs of one scheme are told apart by their names."""
    same = [each for each in runs if scheme_of(each) == scheme_of(run)]
    return scheme_of(run) if len(same) == 1 else run.name


def _left_out_note(shown: int, left_out: int) -> str:
    if not left_out:
        return ""
    return (
        f"{shown} of {shown + left_out} runs are shown, those that changed last: name others on "
        "the command line"
    )
