"""write_report: the page of a results folder, and its figures as pictures where asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from equipoise.report import draw, report


@dataclass(frozen=True)
class WrittenReport:
    """The files that were made."""

    page: Path
    pictures: list[Path]


def write_report(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    figures: str | None = None,
    to: str | Path | None = None,
    price: float | None = None,
) -> WrittenReport:
    """Write the page of a comparison, a sweep, an arena or a training, and each figure's data.

    Args:
        folder: of `equipoise compare`, `sweep`, `arena --out` or `train`, also of a training that
            runs or has stopped; or a comparison's rows.json, or the folder of a trace.
        out: the page's file; by default report.html in the folder, or rows.html beside rows.json.
        figures: "png", "svg" or "pdf" to draw each figure too, by a browser on this machine.
        to: the folder of pictures and their data; by default figures/ beside the page.
        price: of a device hour: a comparison's page then tells idle time in money too.

    Example:
        >>> equipoise.write_report("runs/a", "a.html")  # doctest: +SKIP
    """
    if to is not None and figures is None:
        raise ValueError("--to says where pictures go: use it with --figures png, svg or pdf")
    page = report(folder, out, price=price)
    return WrittenReport(page, [] if figures is None else draw(page, figures, to))
