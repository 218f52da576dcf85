"""Verdict: did a statement of the paper apply here, did it hold, and by what margin.

`applies` is apart from `holds`: a theorem whose hypotheses fail is not refuted. A check is a
function of one piece of evidence (a step, a run, a law) that first calls `require` for each
hypothesis and then returns its slack: by how much the conclusion holds, negative if it does not,
and if it likes a note. `judge` folds the slacks of many pieces into one verdict.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar


class Verdict(NamedTuple):
    """What became of one statement."""

    name: str
    applies: bool
    """whether the hypotheses held anywhere"""
    holds: bool | None
    """whether the conclusion held everywhere the hypotheses did; None where they never did"""
    margin: float | None
    """the least slack, in the statement's own unit (its docstring says which); negative if it does
    not hold
    """
    worst_step: int | None
    """where the slack was least"""
    why: str
    """which hypothesis failed, or what the margin means here"""


class Evidence(Protocol):
    """What can be checked: it knows at which step of the training or loop it was taken."""

    @property
    def number(self) -> int: ...


class Slack(NamedTuple):
    """By how much a conclusion holds, and what a reader should know beside."""

    value: float
    note: str = ""


class HypothesisError(Exception):
    """A hypothesis does not hold; the text says which, in words."""


E = TypeVar("E", bound=Evidence)


def require(met: bool, otherwise: str) -> None:
    """A hypothesis."""
    if not met:
        raise HypothesisError(otherwise)


def judge(
    name: str, check: Callable[[E], float | Slack], evidence: Iterable[E], meaning: str = ""
) -> Verdict:
    """One verdict from many pieces of evidence: the worst slack where the hypotheses hold, and what
    failed elsewhere.
    """
    slacks: list[tuple[float, int, str]] = []
    unmet: list[str] = []
    for piece in evidence:
        try:
            found = check(piece)
        except HypothesisError as reason:
            unmet.append(str(reason))
        else:
            value, note = found if isinstance(found, Slack) else (found, "")
            slacks.append(
                (
                    -math.inf if math.isnan(value) else float(value),
                    piece.number,
                    _placed(note or meaning, piece),
                )
            )
    if not slacks:
        return Verdict(name, False, None, None, None, _told(unmet) or "there was nothing to check")
    margin, step, note = min(slacks)
    told = [note] if note else []
    if unmet:
        told.append(
            f"checked {len(slacks)} of {len(slacks) + len(unmet)}; elsewhere: {_told(unmet)}"
        )
    return Verdict(name, True, margin >= 0, margin, step, "; ".join(told))


def _placed(note: str, piece: Evidence) -> str:
    layer = getattr(piece, "layer", "")
    return f"{note} (layer {layer})" if layer else note


def _told(unmet: list[str]) -> str:
    """The commonest reasons, one example each: those that differ in their figures only are one
    reason.
    """
    examples = {re.sub(r"[\d.e+-]+", "#", text): text for text in reversed(unmet)}
    common = Counter(re.sub(r"[\d.e+-]+", "#", text) for text in unmet).most_common(2)
    return "; ".join(examples[kind] for kind, _ in common)
