"""The list of statements: each is registered once, where it is defined; `verify` walks the list.

    @statement(5, "assignment changes", evidence=STEPS, meaning="difference of signs, less 1")
    def assignment_changes(step: UpdateStep) -> float:
        ...

The decorated function is the check of one piece of evidence. What the decorator leaves under its
name is a `Statement`: called with a source (a problem, a run, a law, a trace), it takes the pieces
from the source, checks each, and gives one Verdict. The verdict's name, "5 assignment changes", is
what run folders keep: do not change the name of a statement that has been released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial, update_wrapper
from typing import Any, Generic, NamedTuple, TypeVar

from equipoise.theorems.verdict import (
    ASSUMPTION_PREFIX,
    Evidence,
    HypothesisError,
    Slack,
    Verdict,
    judge_evidence,
    not_applicable,
)

SourceT = TypeVar("SourceT")
EvidenceT = TypeVar("EvidenceT", bound=Evidence)
OptionT = TypeVar("OptionT")


class Setting(Enum):
    """The paper's settings. `verify` makes evidence for each of them, once for all statements."""

    FIXED_SCORES = "runs on fixed scores"
    DRAWN_BATCHES = "batches drawn at one shift"
    REPEATED_DESCENTS = "many seeds of one descent"
    WHOLE_TRAININGS = "layers from the first step to the last"


class EvidenceKind(NamedTuple, Generic[SourceT, EvidenceT]):
    """What a statement takes: the setting it belongs to, and how a source is cut into pieces."""

    setting: Setting
    pieces: Callable[[SourceT], Iterable[EvidenceT]]
    """May raise HypothesisError: then the statement does not apply to this source."""


class Statement(Generic[SourceT, EvidenceT]):
    """A numbered statement of the paper: source -> Verdict."""

    def __init__(
        self,
        number: int,
        title: str,
        evidence: EvidenceKind[SourceT, EvidenceT],
        meaning: str,
        check: Callable[[EvidenceT], float | Slack],
    ) -> None:
        self.number = number
        self.name = f"{number} {title}" if number else title
        self.evidence = evidence
        self.meaning = meaning
        self.check = check
        update_wrapper(self, check)

    def __call__(self, source: SourceT) -> Verdict:
        try:
            pieces = self.evidence.pieces(source)
        except HypothesisError as reason:
            return not_applicable(self.name, str(reason))
        return judge_evidence(self.name, self.check, pieces, self.meaning)

    def __repr__(self) -> str:
        return f"<statement {self.name}>"


class Variants(Generic[SourceT, EvidenceT]):
    """One statement in several forms, each registered. Called without a variant: the first form."""

    def __init__(self, forms: Mapping[str, Statement[SourceT, EvidenceT]]) -> None:
        self.forms = forms

    def __call__(self, source: SourceT, variant: str | None = None) -> Verdict:
        return self.forms[variant or next(iter(self.forms))](source)


_REGISTERED: dict[str, Statement[Any, Any]] = {}


def statement(
    number: int, title: str, *, evidence: EvidenceKind[SourceT, EvidenceT], meaning: str = ""
) -> Callable[[Callable[[EvidenceT], float | Slack]], Statement[SourceT, EvidenceT]]:
    """Register the decorated check as a statement.

    Args:
        number: the paper's; several forms of one statement share it.
        title: the rest of the verdict's name.
        evidence: what it is checked on: STEPS or RUNS on fixed scores, DRAWS, CURVATURES, JOURNEYS.
        meaning: what the margin is in, for checks that return a bare number.
    """

    def register(
        check: Callable[[EvidenceT], float | Slack],
    ) -> Statement[SourceT, EvidenceT]:
        made = Statement(number, title, evidence, meaning, check)
        if made.name in _REGISTERED:
            raise ValueError(f"two statements are called {made.name!r}: give one another title")
        _REGISTERED[made.name] = made
        return made

    return register


def assumption(
    title: str, *, evidence: EvidenceKind[SourceT, EvidenceT], meaning: str = ""
) -> Callable[[Callable[[EvidenceT], float | Slack]], Statement[SourceT, EvidenceT]]:
    """Register the decorated check as an assumption: it has no number, and stands before all
    statements.
    """
    return statement(0, f"{ASSUMPTION_PREFIX}{title}", evidence=evidence, meaning=meaning)


def remark(
    title: str, *, evidence: EvidenceKind[SourceT, EvidenceT], meaning: str = ""
) -> Callable[[Callable[[EvidenceT], float | Slack]], Statement[SourceT, EvidenceT]]:
    """Register the decorated check as something the paper says in passing, without a number: it
    can be refuted like any statement.
    """
    return statement(0, f"remark: {title}", evidence=evidence, meaning=meaning)


def statement_variants(
    number: int,
    title: str,
    options: Mapping[str, OptionT],
    *,
    evidence: EvidenceKind[SourceT, EvidenceT],
    meaning: str = "",
) -> Callable[[Callable[[EvidenceT, OptionT], float | Slack]], Variants[SourceT, EvidenceT]]:
    """Register the decorated check once per option, its second argument, as "title, option"."""

    def register(
        check: Callable[[EvidenceT, OptionT], float | Slack],
    ) -> Variants[SourceT, EvidenceT]:
        forms = {}
        for variant, option in options.items():
            form = update_wrapper(partial(_check_with, check, option), check)
            make = statement(number, f"{title}, {variant}", evidence=evidence, meaning=meaning)
            forms[variant] = make(form)
        variants = Variants(forms)
        update_wrapper(variants, check)
        return variants

    return register


def _check_with(
    check: Callable[[EvidenceT, OptionT], float | Slack], option: OptionT, piece: EvidenceT
) -> float | Slack:
    return check(piece, option)


def registered_statements() -> tuple[Statement[Any, Any], ...]:
    """Those registered so far, by number; those of one number as they are defined."""
    return tuple(sorted(_REGISTERED.values(), key=lambda each: each.number))
