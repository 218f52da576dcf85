"""From a results folder, or the file a comparison keeps, to one page that needs nothing else.

Rooms: comparison/, sweep/, arena/ and run/ (a single training or trace, also while it runs), each
with the sentences on top (answer; a comparison's
are in results/, since the terminal prints them), the figures' data as JSON and CSV (figures), and
the page with its HTML, JavaScript and style. What they read is typed and loaded by
equipoise.results. Nothing here imports torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from equipoise.report.arena.page import report_arena
from equipoise.report.comparison.markdown import comparison_markdown
from equipoise.report.comparison.page import report_comparison
from equipoise.report.pictures import draw_pictures
from equipoise.report.run.page import report_run
from equipoise.report.sweep.page import report_sweep
from equipoise.results.arena import is_arena
from equipoise.results.comparison.rows import read_comparison
from equipoise.results.comparison.rows_file import COMPARISON_MANIFEST
from equipoise.results.follow.find_runs import holds_run
from equipoise.results.sweep import is_sweep

__all__ = ["as_markdown", "draw", "report"]


def report(
    folder: str | Path, out: str | Path | None = None, *, price: float | None = None
) -> Path:
    """The page of a comparison (its folder or rows.json), a sweep, an arena, or a training, running
    or not, with each figure's data beside it.

    Args:
        folder: what it is made of.
        out: the page's file; by default in or beside the folder.
        price: of a device hour, for a comparison: idle time is then told in money too.

    Returns its path.
    """
    draw_page = _page_of_one_kind(Path(folder))
    if draw_page is None:
        return report_comparison(folder, out, price=price)
    if price is not None:
        raise ValueError(f"{folder} is no comparison: only such a page tells idle time in money")
    return draw_page(folder, out)


def _page_of_one_kind(folder: Path) -> Callable[..., Path] | None:
    """What draws an arena, a sweep or a single run; None for a comparison."""
    if is_arena(folder):
        return report_arena
    if is_sweep(folder):
        return report_sweep
    single = holds_run(folder) and not (folder / COMPARISON_MANIFEST).exists()
    return report_run if single else None


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
