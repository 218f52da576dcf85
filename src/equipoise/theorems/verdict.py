"""Verdict: did a statement of the paper apply here, did it hold, and by what margin.

`applies` is apart from `holds`: a theorem whose hypotheses fail is not refuted. A check is a
function of one piece of evidence (a step, a run, a law). It first calls `require_hypothesis` for
each hypothesis, then returns its slack: by how much the conclusion holds, negative if it does not.
It may add a note. `judge_evidence` folds the slacks of many pieces into one verdict.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

ASSUMPTION_PREFIX = "assumption: "
"""of the names of verdicts on what the paper assumes"""


class Verdict(NamedTuple):
    """What became of one statement.

    Example:
        >>> verdict = equipoise.Verdict("5 assignment changes", True, True, 1.0, 3, "signs")
        >>> verdict.holds, verdict.is_assumption
        (True, False)
    """

    name: str
    applies: bool
    """whether the hypotheses held anywhere"""
    holds: bool | None
    """whether the conclusion held everywhere the hypotheses did; None where they never did"""
    margin: float | None
    """the least slack, in the statement's own unit (its docstring says which); negative if it does
    not hold"""
    worst_step: int | None
    """where the slack was least"""
    why: str
    """which hypothesis failed, or what the margin means here"""

    @property
    def is_assumption(self) -> bool:
        """Whether it is about what the paper assumes: that refutes nothing."""
        return self.name.startswith(ASSUMPTION_PREFIX)

    @property
    def refuted(self) -> bool:
        """Whether a statement applies and does not hold."""
        return self.applies and not self.holds and not self.is_assumption


class Evidence(Protocol):
    """What can be checked: it knows at which step of the training or loop it was taken."""

    @property
    def number(self) -> int: ...


class Slack(NamedTuple):
    """By how much a conclusion holds, and a note for the reader."""

    value: float
    note: str = ""


def slack_of_bound(slack: float, tolerance: float) -> float:
    """The slack of an inequality that rounding may break by `tolerance`.

    A bound that is met exactly has slack 0, not the tolerance: a margin is what the statement had
    to spare, and rounding is not part of it.
    """
    return slack if slack >= 0 else min(slack + tolerance, 0.0)


def slack_of_identity(error: float, tolerance: float) -> Slack:
    """1 less the error as a share of what rounding may do; the note says the share."""
    share = error / tolerance
    return Slack(1 - share, f"error {share:.2g} of what rounding may do")


class HypothesisError(Exception):
    """A hypothesis does not hold; the text says which, in words."""


PieceT = TypeVar("PieceT", bound=Evidence)


def require_hypothesis(met: bool, otherwise: str) -> None:
    """Raise HypothesisError with the text `otherwise` unless the hypothesis is met."""
    if not met:
        raise HypothesisError(otherwise)


def not_applicable(name: str, why: str) -> Verdict:
    """The verdict on a statement whose hypotheses held nowhere."""
    return Verdict(name, applies=False, holds=None, margin=None, worst_step=None, why=why)


def judge_evidence(
    name: str,
    check: Callable[[PieceT], float | Slack],
    evidence: Iterable[PieceT],
    meaning: str = "",
) -> Verdict:
    """One verdict from many pieces of evidence.

    Its margin is the worst slack where the hypotheses hold. Its `why` is the note of that piece (or
    `meaning`, what the margin is in), then what failed on the other pieces.
    """
    slacks: list[tuple[float, int, str]] = []
    unmet: list[str] = []
    for piece in evidence:
        try:
            found = check(piece)
        except HypothesisError as reason:
            unmet.append(str(reason))
            continue
        value, note = found if isinstance(found, Slack) else (found, "")
        # NaN compares with nothing: a slack that cannot be computed counts as failed
        value = -math.inf if math.isnan(value) else float(value)
        slacks.append((value, piece.number, _with_layer(note or meaning, piece)))
    if not slacks:
        return not_applicable(name, _commonest_reasons(unmet) or "there was nothing to check")
    margin, step, note = min(slacks)
    parts = [note] if note else []
    if unmet:
        total, reasons = len(slacks) + len(unmet), _commonest_reasons(unmet)
        parts.append(f"checked {len(slacks)} of {total}; elsewhere: {reasons}")
    return Verdict(name, True, margin >= 0, margin, step, "; ".join(parts))


def _with_layer(note: str, piece: Evidence) -> str:
    layer = getattr(piece, "layer", "")
    return f"{note} (layer {layer})" if layer else note


def _commonest_reasons(unmet: list[str]) -> str:
    """The two commonest reasons. Texts that differ only in their numbers count as one."""
    examples = {re.sub(r"[\d.e+-]+", "#", text): text for text in reversed(unmet)}
    common = Counter(re.sub(r"[\d.e+-]+", "#", text) for text in unmet).most_common(2)
    return "; ".join(examples[kind] for kind, _ in common)
