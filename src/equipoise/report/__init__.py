"""From a results folder to one page that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from equipoise.report import page
from equipoise.report.arena_page import report_arena
from equipoise.report.arena_read import is_arena

__all__ = ["report"]


def report(folder: str | Path, out: str | Path | None = None) -> Path:
    """The page of a comparison, a training or an arena, with each figure's data beside it. Returns the page's path."""
    return report_arena(folder, out) if is_arena(Path(folder)) else page.report(folder, out)
