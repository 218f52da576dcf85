"""The first sentence of a report, computed from its table."""

from __future__ import annotations

from equipoise.report.read import Results


def answer(results: Results) -> str:
    """Who is most even, who learns best, and how much of that may be chance."""
    rows = [series.row for series in results.series if series.row["imbalance"] is not None]
    if not rows:
        return "No run has finished, so there is nothing to compare."
    even = min(rows, key=lambda row: row["imbalance"])
    if len(rows) == 1:
        return (
            f"After {results.steps:,} steps {even['label']} has a validation loss of {even['validation_loss']:.4f} and leaves "
            f"loads {even['imbalance']:.1%} off their target on average."
        )
    best = min(rows, key=lambda row: row["validation_loss"])
    worst = max(rows, key=lambda row: row["imbalance"])
    apart = max(row["validation_loss"] for row in rows) - best["validation_loss"]
    return (
        f"After {results.steps:,} steps of {results.preset}, {even['label']} leaves the loads most even "
        f"({even['imbalance']:.1%} off target on average; {worst['label']}, the least even, {worst['imbalance']:.1%}), and "
        f"{best['label']} has the lowest validation loss ({best['validation_loss']:.4f}; all lie within {apart:.4f}). "
        f"{_chance(rows[0]['seeds'])}"
    )


def _chance(seeds: int) -> str:
    if seeds == 1:
        return "One seed: how much of these differences is chance is not known."
    return f"Means over {seeds} seeds; the table has their spread."
