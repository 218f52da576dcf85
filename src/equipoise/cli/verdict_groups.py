"""Verdicts for a reader in a hurry: the verdict, what was refuted, and what does not apply, by
reason.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.theorems import Verdict


def verdict_summary(found: Sequence[Verdict]) -> str:
    """The verdict in one or two sentences: what was refuted, what holds, what was not checked."""
    from equipoise.theorems.contradictions import AGREEMENT

    statements = [each for each in found if each.name != AGREEMENT and not each.is_assumption]
    refuted = sum(each.refuted for each in statements)
    silent = sum(not each.applies for each in statements)
    hold = len(statements) - refuted - silent
    if not hold and not refuted:
        line = f"Nothing was checked: none of {_count(statements, 'statement')} applies."
    elif refuted:
        line = f"REFUTED: {_count(refuted, 'statement')}; {hold} hold, {silent} do not apply."
    else:
        line = f"Nothing is refuted: {hold} hold, {silent} do not apply."
    assumed = [each for each in found if each.is_assumption and each.applies]
    if failed := sum(not each.holds for each in assumed):
        line += f" {failed} of {_count(assumed, 'assumption')} do not hold."
    damaged = any(verdict.name == AGREEMENT for verdict in found)
    return ("The trace is DAMAGED: it contradicts itself. " if damaged else "") + line


def grouped_lines(found: Sequence[Verdict], width: int) -> Iterator[str]:
    """A group for each kind of verdict, and within it for each reason; names are never cut."""
    from equipoise.theorems.verdict import ASSUMPTION_PREFIX

    refuted = [each for each in found if each.refuted]
    if refuted:
        yield "Refuted"
        for each in refuted:
            yield from _reason_lines(f"{each.name}: {_margin_words(each)}", width)
    holding = [each for each in found if each.holds and not each.is_assumption]
    if holding:
        yield f"Hold ({len(holding)})"
        yield from packed_names([each.name for each in holding], width)
    silent = [each for each in found if not each.applies and not each.is_assumption]
    if silent:
        yield f"Do not apply ({len(silent)})"
        for reason, names in group_by_reason(silent):
            yield from _reason_lines(f"{reason}:", width)
            yield from packed_names(names, width, indent=4)
    failed = [each for each in found if each.is_assumption and each.applies and not each.holds]
    if failed:
        yield f"Assumptions that do not hold ({len(failed)}); that refutes nothing"
        for each in failed:
            name = each.name.removeprefix(ASSUMPTION_PREFIX)
            yield from _reason_lines(f"{name}: {_without_elsewhere(each.why)}", width)
    yield "Margins: --details. For other programs: --json."


def group_by_reason(found: Sequence[Verdict]) -> list[tuple[str, list[str]]]:
    """Each reason with the names it holds for; reasons that differ only in numbers are one."""
    groups: dict[str, tuple[str, list[str]]] = {}
    for each in found:
        kind = re.sub(r"[\d.e+-]+", "#", each.why)
        groups.setdefault(kind, (each.why, []))[1].append(each.name)
    return list(groups.values())


def packed_names(names: Sequence[str], width: int, indent: int = 2) -> Iterator[str]:
    """Lines of as many names as fit, parted by semicolons: names have commas themselves."""
    line = ""
    for place, name in enumerate(names):
        piece = name + (";" if place < len(names) - 1 else "")
        if line and indent + len(line) + 1 + len(piece) >= width:
            yield " " * indent + line
            line = ""
        line = f"{line} {piece}".lstrip()
    if line:
        yield " " * indent + line


def _margin_words(verdict: Verdict) -> str:
    margin = "" if verdict.margin is None else f"margin {verdict.margin:.3g}"
    step = "" if verdict.worst_step is None else f" at step {verdict.worst_step}"
    return f"{margin}{step}; {_without_elsewhere(verdict.why)}"


def _without_elsewhere(why: str) -> str:
    """Why other steps were left out is long; --json has it."""
    return why.split("; elsewhere")[0]


def _reason_lines(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width - 1, 20), initial_indent="  ", subsequent_indent="    ")


def _count(things: Sequence[object] | int, word: str) -> str:
    number = things if isinstance(things, int) else len(things)
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
