"""The first sentences of a sweep's page, computed from its table.

The setting with the lowest mean is named; that its scheme is better than another is said only where
their best settings differ significantly, paired by seed (results/comparison/differences.py).
"""

from __future__ import annotations

from equipoise.results.columns import VALIDATION_IMBALANCE, VALIDATION_LOSS, setting_column
from equipoise.results.comparison.differences import SIGNIFICANCE, paired_difference
from equipoise.results.sweep import SettingRow, SweepTable


def sweep_answer(table: SweepTable) -> str:
    """Which setting of which scheme has the lowest loss, how far the others' best are, and what to
    doubt.
    """
    if not table.best:
        return f"No setting has finished in full, so there is no best one.{_unfinished(table)}"
    losses = [_mean_of(row, VALIDATION_LOSS.key) for row in table.best]
    first = table.best[losses.index(min(losses))]
    said = (
        f"Of {len(table.rows)} settings, {_name_setting(first)} has the lowest validation loss "
        f"({VALIDATION_LOSS.text(min(losses))})"
    )
    if len(table.best) > 1:
        even = min(table.best, key=lambda row: _mean_of(row, VALIDATION_IMBALANCE.key))
        said += (
            f"; the best of the {len(table.best)} schemes lie within "
            f"{max(losses) - min(losses):.4f}, and the most even of them is {_name_setting(even)} "
            f"({_mean_of(even, VALIDATION_IMBALANCE.key):.1%} off target on average)"
        )
    return f"{said}. {_role_of_chance(table, first)}{_ends_of_axes(table)}{_unfinished(table)}"


def _mean_of(row: SettingRow, key: str) -> float:
    """Of a best setting, all of whose trials have finished."""
    mean = row.figures[key].mean
    assert mean is not None, row
    return mean


def _name_setting(row: SettingRow) -> str:
    settings = row.described_settings()
    return f"{row.label} with {settings}" if settings else row.label


def _role_of_chance(table: SweepTable, first: SettingRow) -> str:
    if table.seeds == 1:
        return "One seed, and the lowest of many: how much of that is chance is not known."
    others = [row for row in table.best if row is not first]
    known = [row for row in others if _is_below(first, row, len(others))]
    unknown = [row.label for row in others if row not in known]
    said = f"Means over {table.seeds} seeds; the lowest of many is still partly chance."
    if not others:
        return said
    if not unknown:
        return f"{said} Paired by seed it is significantly below each other scheme's best."
    return f"{said} Paired by seed it is not known to be below the best of {', '.join(unknown)}."


def _is_below(ours: SettingRow, theirs: SettingRow, tests: int) -> bool:
    """Significantly, with as many comparisons counted (Bonferroni)."""
    losses = (row.figures[VALIDATION_LOSS.key].values for row in (ours, theirs))
    found = paired_difference(*losses)
    if found is None or found.chance is None:
        return False
    return found.mean < 0 and found.chance * tests < SIGNIFICANCE


def _ends_of_axes(table: SweepTable) -> str:
    names = [
        f"{' and '.join(setting_column(key).name for key in row.at_the_end)} of {row.label}"
        for row in table.best
        if row.at_the_end
    ]
    if not names:
        return ""
    return f" At an end of what was tried, so that better may lie beyond: {'; '.join(names)}."


def _unfinished(table: SweepTable) -> str:
    counts = {"failed": len(table.failed), "not finished": len(table.unfinished)}
    return "".join(f" Trials {name}: {count}." for name, count in counts.items() if count)
