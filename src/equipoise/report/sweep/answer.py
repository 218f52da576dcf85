"""The first sentences of a sweep's page, computed from its table."""

from __future__ import annotations

from equipoise.report.sweep.read import SHORT, Row, Sweep, setting


def answer(sweep: Sweep) -> str:
    """Which setting of which scheme has the lowest loss, how far the others' best are, and what to
    doubt.
    """
    if not sweep.best:
        return f"No setting has finished in full, so there is no best one.{_trouble(sweep)}"
    first = min(sweep.best, key=lambda row: row["validation_loss"])
    told = (
        f"Of {len(sweep.rows)} settings, {_named(first)} has the lowest validation loss "
        f"({first['validation_loss']:.4f})"
    )
    if len(sweep.best) > 1:
        apart = max(row["validation_loss"] for row in sweep.best) - first["validation_loss"]
        even = min(sweep.best, key=lambda row: row["imbalance"])
        told += (
            f"; the best of the {len(sweep.best)} schemes lie within {apart:.4f}, and the most "
            f"even of them is {_named(even)} "
            f"({even['imbalance']:.1%} off target on average)"
        )
    return f"{told}. {_chance(sweep.seeds)}{_ends(sweep)}{_trouble(sweep)}"


def _named(row: Row) -> str:
    said = setting(row)
    return f"{row['label']} with {said}" if said else str(row["label"])


def _chance(seeds: int) -> str:
    if seeds == 1:
        return "One seed, and the lowest of many: how much of that is chance is not known."
    return f"Means over {seeds} seeds; the lowest of many is still partly luck."


def _ends(sweep: Sweep) -> str:
    names = [
        f"{' and '.join(SHORT.get(key, key) for key in row['at_the_end'])} of {row['label']}"
        for row in sweep.best
        if row["at_the_end"]
    ]
    return (
        f" At an end of what was tried, so that better may lie beyond: {'; '.join(names)}."
        if names
        else ""
    )


def _trouble(sweep: Sweep) -> str:
    counts = {"failed": len(sweep.failed), "not finished": len(sweep.unfinished)}
    return "".join(f" Trials {name}: {count}." for name, count in counts.items() if count)
