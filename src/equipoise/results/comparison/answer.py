"""answer: the sentences on top. Which schemes really differ from the one they are compared with,
and what is not known.

A scheme is named in front of another only where the difference is real (differences.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from equipoise.results.comparison.columns import ANSWERED
from equipoise.results.comparison.differences import (
    PREFERRED,
    Difference,
    Row,
    against,
    differences,
)
from equipoise.results.comparison.rows import Results

SPOKEN = {
    "training_imbalance": "imbalance over the training",
    "training_idle": "idle device time over the training",
    "imbalance": "validation imbalance",
    "validation_loss": "validation loss",
}


def answer(results: Results) -> str:
    rows = [row for row in results.rows if row["seeds"]]
    base = against(rows)
    if base is None:
        return "No run has finished, so there is nothing to compare."
    if len(rows) == 1:
        return _alone(results, rows[0])
    found = {key: differences(rows, key) for key in ANSWERED}
    if not any(each.half is not None for column in found.values() for each in column.values()):
        return _one_seed(results, rows)
    return _many_seeds(results, rows, base, found)


def _alone(results: Results, row: Row) -> str:
    over = "" if row["seeds"] == 1 else f" (means over {row['seeds']} seeds)"
    floor = "" if row["floor"] is None else f"; chance alone would leave {row['floor']:.1%}"
    return (
        f"After {results.steps:,} steps {row['label']} has a validation loss of "
        f"{row['validation_loss']:.4f} and leaves "
        f"loads {row['imbalance']:.1%} off their target on average{over}{floor}."
    )


def _one_seed(results: Results, rows: Sequence[Row]) -> str:
    """Figures of this one seed, and no order among the balanced: none is known."""
    key = (
        "training_imbalance"
        if all(row["training_imbalance"] is not None for row in rows)
        else "imbalance"
    )
    balanced = [row for row in rows if row.get("balancer") != "none"] or list(rows)
    parts = [f"{row['label']} {row[key]:.3f}" for row in rows if row not in balanced]
    parts.append(f"{_count(balanced)} {_range(balanced, key, 3)}")
    seeds = "One seed" if max(row["seeds"] for row in rows) == 1 else "No two seeds in common"
    return (
        f"{seeds}, {results.steps:,} steps of {results.preset}. {_capital(SPOKEN[key])}: "
        f"{', '.join(parts)}; "
        f"validation loss of all {_range(rows, 'validation_loss', 4)}. Which of these "
        "differences another seed would "
        "repeat is not known: --seeds 5 gives intervals."
    )


def _many_seeds(
    results: Results, rows: Sequence[Row], base: Row, found: dict[str, dict[str, Difference]]
) -> str:
    labels = {
        row["name"]: row["label"].replace(", ", " with ") for row in rows
    }  # no commas inside a list
    groups: dict[str, list[str]] = {}
    for key, column in found.items():
        if column:
            groups.setdefault(_differ(column, labels), []).append(SPOKEN[key])
    told = [
        f"{_capital(_list(names))} {'is' if len(names) == 1 else 'are'} {said}"
        for said, names in groups.items()
        if said
    ]
    unclear = [
        f"no scheme is known to differ in {_list(names, 'or')}"
        for said, names in groups.items()
        if not said
    ]
    if any(not each.real for column in found.values() for each in column.values()) and told:
        unclear.append(
            "differences not named here are within the noise between seeds, and not known"
        )
    first = (
        f"Against {base['label']}{_instead(base)}, {_seeds(found)}, {results.steps:,} steps "
        f"of {results.preset}."
    )
    return " ".join(
        [
            first,
            *(f"{each}." for each in told),
            *([f"{_capital('; '.join(unclear))}."] if unclear else []),
        ]
    )


def _differ(column: dict[str, Difference], labels: dict[str, str]) -> str:
    """ "really lower under a and b, really higher under c"; nothing where no difference is real."""
    lower = [labels[name] for name, each in column.items() if each.real and each.mean < 0]
    higher = [labels[name] for name, each in column.items() if each.real and each.mean > 0]
    parts = [
        f"really {word} under {_list(names)}"
        for word, names in (("lower", lower), ("higher", higher))
        if names
    ]
    return ", ".join(parts)


def _instead(base: Row) -> str:
    return "" if base["name"] == PREFERRED else f" ({PREFERRED} is not among the finished schemes)"


def _seeds(found: dict[str, dict[str, Difference]]) -> str:
    counts = {len(each.seeds) for column in found.values() for each in column.values()}
    return f"paired over {min(counts)}{'' if len(counts) == 1 else f' to {max(counts)}'} seeds"


def _count(rows: Sequence[Row]) -> str:
    return str(rows[0]["label"]) if len(rows) == 1 else f"the {len(rows)} balanced schemes"


def _range(rows: Sequence[Row], key: str, digits: int) -> str:
    known = [row[key] for row in rows if row[key] is not None]
    low, high = (f"{pick(known):.{digits}f}" for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _list(names: Iterable[str], word: str = "and") -> str:
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def rule(results: Results) -> str:
    """One line for below a table of differences."""
    found = [differences(results.rows, key).values() for key in ANSWERED]
    compared = max(
        sum(each.chance is not None for each in column) for column in found
    )  # those with an interval
    return (
        "±: 95% interval of the mean difference by Student's law, paired by seed. "
        f"*: real, that is not 0 even when all {compared} comparisons of its column are counted "
        "(Bonferroni, 95% together)."
    )
