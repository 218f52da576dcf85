"""find_runs: which runs the folders hold that a user names.

    a training, or the folder of balance(..., trace=...)     itself
    a sweep                                                  its trials that have begun
    a comparison                                             its runs that have begun
    a folder of runs                                         those directly in it
    anything else, also what is not there yet                itself: it may begin

A manifest may name folders; only those inside its own are taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from equipoise.results.comparison.rows_file import COMPARISON_MANIFEST
from equipoise.results.run import METRICS_FILE, RESULT_FILE
from equipoise.storage.json_files import read_json
from equipoise.trace.layout import is_trace

MOST_RUNS = 12
"""that are shown at the same time"""
RUN_MARKS = (METRICS_FILE, RESULT_FILE, "config.yaml", "run.json")


class FoundRun(NamedTuple):
    name: str
    folder: Path


class FoundRuns(NamedTuple):
    runs: list[FoundRun]
    left_out: int
    """runs that are not shown, since there are more than MOST_RUNS"""


def holds_run(folder: Path) -> bool:
    """Whether it is the folder of a training of ours, or of a trace."""
    marks = any((folder / name).exists() for name in RUN_MARKS)
    return marks or is_trace(folder) or is_trace(folder / "trace")


def find_runs(folders: Iterable[Path]) -> FoundRuns:
    """The runs to show; of many, those that were changed last."""
    found: dict[Path, FoundRun] = {}
    for folder in folders:
        for run in _runs_in(folder):
            found.setdefault(run.folder, run)
    runs = list(found.values())
    newest = sorted(runs, key=lambda run: _changed_at(run.folder), reverse=True)[:MOST_RUNS]
    kept = [run for run in runs if run in newest]
    return FoundRuns(_different_names(kept), len(runs) - len(kept))


def _runs_in(folder: Path) -> list[FoundRun]:
    if holds_run(folder):
        return [FoundRun(_name_of(folder), folder)]
    inside = [*_named_by_manifest(folder), *_children(folder), *_children(folder / "trials")]
    runs = [FoundRun(each.name, each) for each in dict.fromkeys(inside) if holds_run(each)]
    return runs or [FoundRun(_name_of(folder), folder)]


def _named_by_manifest(folder: Path) -> list[Path]:
    """The runs of a comparison. What is damaged, or points out of the folder, names none."""
    try:
        content = read_json(folder / COMPARISON_MANIFEST)
        names = [str(each) for each in content.get("runs", {}).values()]
    except (OSError, ValueError, AttributeError):
        return []
    root = folder.resolve()
    return [folder / each for each in names if (root / each).resolve().is_relative_to(root)]


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _name_of(folder: Path) -> str:
    resolved = folder.resolve()
    return resolved.parent.name if resolved.name == "trace" else resolved.name


def _changed_at(folder: Path) -> float:
    for name in (METRICS_FILE, "trace/000", "000", "."):
        try:
            return (folder / name).stat().st_mtime
        except (FileNotFoundError, NotADirectoryError):
            continue
    return 0.0


def _different_names(runs: list[FoundRun]) -> list[FoundRun]:
    """Folders of one name, in different places, with as much of their path as tells them apart."""
    names = [run.name for run in runs]
    return [
        run
        if names.count(run.name) == 1
        else FoundRun("/".join(run.folder.resolve().parts[-3:]), run.folder)
        for run in runs
    ]
