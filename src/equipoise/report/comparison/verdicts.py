"""The paper's statements on a comparison's runs: how many hold, and why the others do not apply."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape

from equipoise.report.frame import html_table, scheme_mark
from equipoise.results.comparison.rows import ComparisonResults, SchemeRuns
from equipoise.results.run import VerdictRow

ASSUMPTION = "assumption: "
"""begins the names of verdicts on what the paper assumes: one that fails refutes nothing"""


def verdict_section(results: ComparisonResults) -> str:
    """A sentence over all schemes, then a fold for each: counts, refuted statements first, margins,
    and statements that do not apply by their reason.
    """
    found = [
        (scheme, verdicts)
        for scheme in results.schemes
        if scheme.runs and (verdicts := scheme.runs[0]["measured"].get("verdicts"))
    ]
    if not found:
        return "<p>No verdicts: a run has them once `equipoise compare` has measured it.</p>"
    folds = "".join(_scheme_fold(scheme, verdicts) for scheme, verdicts in found)
    return f"<p>{_overall(found)}</p><div id=verdicts>{folds}</div>"


def verdict_counts(verdicts: Sequence[VerdictRow]) -> str:
    """As in "14 hold, 12 do not apply"; what is refuted comes first, and nothing is left out."""
    stated, assumed = _split_assumptions(verdicts)
    refuted = [each for each in stated if each["applies"] and not each["holds"]]
    parts = [f"{len(refuted)} refuted"] if refuted else []
    parts.append(f"{sum(bool(each['holds']) for each in stated)} hold")
    parts.append(f"{sum(not each['applies'] for each in stated)} do not apply")
    failed = sum(each["applies"] and not each["holds"] for each in assumed)
    if assumed:
        parts.append(f"{failed} of {len(assumed)} assumptions fail")
    return ", ".join(parts)


def _split_assumptions(
    verdicts: Sequence[VerdictRow],
) -> tuple[list[VerdictRow], list[VerdictRow]]:
    assumed = [each for each in verdicts if each["name"].startswith(ASSUMPTION)]
    return [each for each in verdicts if each not in assumed], assumed


def _overall(found: Iterable[tuple[SchemeRuns, Sequence[VerdictRow]]]) -> str:
    refuted = [
        f"{escape(each['name'])} under {escape(scheme.label)}"
        for scheme, verdicts in found
        for each in _split_assumptions(verdicts)[0]
        if each["applies"] and not each["holds"]
    ]
    if refuted:
        return f"<b class=bad>Refuted:</b> {'; '.join(refuted)}."
    return "No statement is refuted: every one whose hypotheses hold in a run, holds in it."


def _scheme_fold(scheme: SchemeRuns, verdicts: Sequence[VerdictRow]) -> str:
    stated, assumed = _split_assumptions(verdicts)
    refuted = [each for each in stated if each["applies"] and not each["holds"]]
    holding = [each for each in stated if each["holds"]]
    body = _margin_table("refuted", refuted) + _margin_table("holds", holding)
    body += _margin_table("assumption", [each for each in assumed if each["applies"]])
    body += _reason_list([each for each in verdicts if not each["applies"]])
    name = escape(scheme.row.name, quote=True)
    head = f"{scheme_mark(scheme.row.name)}{escape(scheme.label)}: {verdict_counts(verdicts)}"
    return f'<details data-scheme="{name}"><summary>{head}</summary>{body}</details>'


def _margin_table(kind: str, verdicts: Sequence[VerdictRow]) -> str:
    if not verdicts:
        return ""
    rows = "".join(
        f"<tr><td>{escape(each['name'])}</td><td class={_tone(each)}>"
        f"{'✓' if each['holds'] else '✗'} {_margin_text(each['margin'])}</td>"
        f"<td>{each['worst_step']}</td><td class=why>{escape(each['why'])}</td></tr>"
        for each in verdicts
    )
    heads = (kind, "least margin", "at step", "in what unit, and where")
    return f"<div class=wide>{html_table(heads, rows)}</div>"


def _tone(verdict: VerdictRow) -> str:
    if verdict["holds"]:
        return "good"
    return "mute" if verdict["name"].startswith(ASSUMPTION) else "bad"


def _margin_text(margin: float | None) -> str:
    return "-" if margin is None else f"{margin:.2g}"


def _reason_list(verdicts: Sequence[VerdictRow]) -> str:
    """Grouped by reason; reasons that differ in a number only are one."""
    groups: dict[str, list[VerdictRow]] = defaultdict(list)
    for each in verdicts:
        groups[re.sub(r"[-+]?\d[\d.e+-]*", "0", each["why"])].append(each)
    if not groups:
        return ""
    items = "".join(
        f"<li><b>{len(group)}</b>: {escape(group[0]['why'])}"
        f"<br><span class=mute>{escape('; '.join(each['name'] for each in group))}</span></li>"
        for group in sorted(groups.values(), key=len, reverse=True)
    )
    return f"<h3>Do not apply, by reason</h3><ul class=reasons>{items}</ul>"
