"""Reading what a page is drawn from: a results folder, or the rows.json that `equipoise compare`
keeps. Nothing is run.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.results.comparison import keep
from equipoise.results.comparison.rows import Results, results


def read_results(path: Path) -> Results:
    if path.is_file():
        return results(keep.read(path))
    if (path / "manifest.json").exists() and not (path / "table.json").exists():
        raise ValueError(
            f"{path} is not finished: run the same `equipoise compare` again, and it goes on"
        )
    return results(keep.gather(path))
