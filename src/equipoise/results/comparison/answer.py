"""answer: the sentences on top of a comparison. Which schemes differ from the one they are compared
with, and what is not known.

A scheme is named in front of another only where the difference is significant (differences.py).
Terminal, page and Markdown all begin with these sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from equipoise.results.columns import (
    ANSWERED_COLUMNS,
    TRAINING_IMBALANCE,
    VALIDATION_IMBALANCE,
    VALIDATION_LOSS,
    Column,
)
from equipoise.results.comparison.differences import (
    PREFERRED_BASELINE,
    Difference,
    baseline_row,
    scheme_differences,
)
from equipoise.results.comparison.rows import ComparisonResults, SchemeRow

Differences = Mapping[Column, Mapping[str, Difference]]
"""by column, then by scheme"""


def comparison_answer(results: ComparisonResults) -> str:
    rows = [row for row in results.rows if row.seeds]
    base = baseline_row(rows)
    if base is None:
        return "No run has finished, so there is nothing to compare."
    if len(rows) == 1:
        return _answer_alone(results, rows[0])
    found = {column: scheme_differences(rows, column.key) for column in ANSWERED_COLUMNS}
    if not any(each.half is not None for column in found.values() for each in column.values()):
        return _answer_one_seed(results, rows)
    return _answer_many_seeds(results, rows, base, found)


def significance_note(results: ComparisonResults) -> str:
    """One line for below a table of differences."""
    found = [scheme_differences(results.rows, column.key).values() for column in ANSWERED_COLUMNS]
    # only those with an interval count
    compared = max(sum(each.chance is not None for each in column) for column in found)
    return (
        "±: 95% interval of the mean difference by Student's law, paired by seed. "
        f"*: significant, that is not 0 even when all {compared} comparisons of its column are "
        "counted (Bonferroni, 95% together)."
    )


def _answer_alone(results: ComparisonResults, row: SchemeRow) -> str:
    over = "" if row.seeds == 1 else f" (means over {row.seeds} seeds)"
    floor = row.mean_of("floor")
    chance = "" if floor is None else f"; chance alone would leave {floor:.1%}"
    return (
        f"After {results.steps:,} steps {row.label} has a validation loss of "
        f"{VALIDATION_LOSS.text(row.mean_of('validation_loss'))} and leaves loads "
        f"{row.mean_of('imbalance'):.1%} off their target on average{over}{chance}."
    )


def _answer_one_seed(results: ComparisonResults, rows: Sequence[SchemeRow]) -> str:
    """Figures of this one seed, and no order among the balanced: none is known."""
    known = all(row.mean_of(TRAINING_IMBALANCE.key) is not None for row in rows)
    column = TRAINING_IMBALANCE if known else VALIDATION_IMBALANCE
    balanced = [row for row in rows if row.balanced] or list(rows)
    parts = [
        f"{row.label} {column.text(row.mean_of(column.key))}" for row in rows if row not in balanced
    ]
    parts.append(f"{_count_schemes(balanced)} {_value_range(balanced, column)}")
    seeds = "One seed" if max(row.seeds for row in rows) == 1 else "No two seeds in common"
    return (
        f"{seeds}, {results.steps:,} steps of {results.preset}. {_capitalize(column.phrase)}: "
        f"{', '.join(parts)}; validation loss of all {_value_range(rows, VALIDATION_LOSS)}. "
        "Which of these differences another seed would repeat is not known: --seeds 5 gives "
        "intervals."
    )


def _answer_many_seeds(
    results: ComparisonResults, rows: Sequence[SchemeRow], base: SchemeRow, found: Differences
) -> str:
    # no commas inside a list
    labels = {row.name: row.label.replace(", ", " with ") for row in rows}
    groups: dict[str, list[str]] = {}
    for column, by_scheme in found.items():
        if by_scheme:
            groups.setdefault(_who_differs(by_scheme, labels), []).append(column.phrase)
    known = [
        f"{_capitalize(_join_names(names))} {'is' if len(names) == 1 else 'are'} {said}."
        for said, names in groups.items()
        if said
    ]
    unknown = [
        f"no scheme is known to differ in {_join_names(names, 'or')}"
        for said, names in groups.items()
        if not said
    ]
    every = [each for by_scheme in found.values() for each in by_scheme.values()]
    if known and not all(each.significant for each in every):
        unknown.append("other differences are within the noise between seeds")
    first = (
        f"Against {base.label}{_why_this_baseline(base)}, {_count_seeds(every)}, "
        f"{results.steps:,} steps of {results.preset}."
    )
    last = [f"{_capitalize('; '.join(unknown))}."] if unknown else []
    return " ".join([first, *known, *last])


def _who_differs(by_scheme: Mapping[str, Difference], labels: Mapping[str, str]) -> str:
    """As in "significantly lower under a and b, significantly higher under c"; empty where no
    difference is significant.
    """
    sure = [(labels[name], each.mean) for name, each in by_scheme.items() if each.significant]
    parts = {
        "lower": [label for label, mean in sure if mean < 0],
        "higher": [label for label, mean in sure if mean > 0],
    }
    return ", ".join(
        f"significantly {word} under {_join_names(names)}" for word, names in parts.items() if names
    )


def _why_this_baseline(base: SchemeRow) -> str:
    if base.name == PREFERRED_BASELINE:
        return ""
    return f" ({PREFERRED_BASELINE} is not among the finished schemes)"


def _count_seeds(every: Iterable[Difference]) -> str:
    counts = {len(each.seeds) for each in every}
    return f"paired over {min(counts)}{'' if len(counts) == 1 else f' to {max(counts)}'} seeds"


def _count_schemes(rows: Sequence[SchemeRow]) -> str:
    return rows[0].label if len(rows) == 1 else f"the {len(rows)} balanced schemes"


def _value_range(rows: Sequence[SchemeRow], column: Column) -> str:
    known = [value for row in rows if (value := row.mean_of(column.key)) is not None]
    low, high = column.text(min(known)), column.text(max(known))
    return low if low == high else f"{low} to {high}"


def _join_names(names: Iterable[str], word: str = "and") -> str:
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
