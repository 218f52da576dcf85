"""From a results folder, or the file a comparison keeps, to one page that needs nothing else.

Three rooms, comparison/, sweep/ and arena/, each with the sentences on top (answer; a comparison's
are in results/, since the terminal prints them), the figures' data as JSON and CSV (figures), and
the page with its HTML, JavaScript and style. What they read is typed and loaded by
equipoise.results. Nothing here imports torch.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from equipoise.report.arena.page import report_arena
from equipoise.report.comparison.markdown import comparison_markdown
from equipoise.report.comparison.page import report_comparison
from equipoise.report.pictures import draw_pictures
from equipoise.report.sweep.page import report_sweep
from equipoise.results.arena import is_arena
from equipoise.results.comparison.rows import read_comparison
from equipoise.results.sweep import is_sweep

__all__ = ["as_markdown", "draw", "report"]


def report(folder: str | Path, out: str | Path | None = None) -> Path:
    """The page of a comparison (its folder or rows.json), a training, a sweep or an arena, with
    each figure's data beside it.

    Returns its path.
    """
    if is_arena(Path(folder)):
        return report_arena(folder, out)
    return report_sweep(folder, out) if is_sweep(Path(folder)) else report_comparison(folder, out)


def as_markdown(path: str | Path) -> str:
    """Answer, table and differences of a comparison's folder or rows.json."""
    if is_arena(Path(path)) or is_sweep(Path(path)):
        raise ValueError(f"{path} is no comparison: only its tables are written as Markdown")
    return comparison_markdown(read_comparison(Path(path)))


def draw(page: Path, kind: str, folder: str | Path | None = None) -> list[Path]:
    """The figures of a page as png, svg or pdf, with their data, in a folder. Returns the pictures'
    paths.
    """
    data = page.parent / "figures"
    place = Path(folder) if folder else data
    made = draw_pictures(page, place, kind)
    for sheet in data.glob("*.csv"):
        if place.resolve() != data.resolve():
            shutil.copy(sheet, place)
    return made
