"""run_state: whether a training runs, has stopped or has finished, as its folder shows.

A training of ours holds a lock while it runs, which the kernel releases however it ends. A trace of
another model has no lock: it counts as running while it grows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from equipoise.results.run import FAILURE_FILE, METRICS_FILE, RESULT_FILE
from equipoise.storage.locks import is_locked

RunState = Literal["waiting", "running", "stopped", "finished", "failed", "deleted"]
TRAINING_LOCK_FILE = ".training.lock"
"""as training.hold_folder names it"""
SILENT_SECONDS = 120.0
"""after which a run without a lock counts as stopped"""
FRESH_SECONDS = 5.0
"""a run that was written to so recently is not asked for its lock: nobody who is about to take the
lock is then kept from it for the moment of asking
"""


def run_state(folder: Path, trace: Path, *, seen_before: bool, patient: bool) -> RunState:
    """How the run in this folder is.

    Args:
        folder: of the run.
        trace: of its trace, which may be the folder itself.
        seen_before: whether something of it was read, so that an empty place means it was deleted.
        patient: whether this is asked again and again: a lock is then not looked at while the run
            is written to.
    """
    changed = last_change(folder, trace)
    if changed is None:
        return "deleted" if seen_before and not folder.exists() else "waiting"
    if (folder / RESULT_FILE).exists():
        return "finished"
    if (folder / FAILURE_FILE).exists():
        return "failed"
    silent = time.time() - changed
    if patient and silent < FRESH_SECONDS:
        return "running"
    held = is_locked(folder / TRAINING_LOCK_FILE)
    if held is None:
        return "running" if silent < SILENT_SECONDS else "stopped"
    return "running" if held else "stopped"


def last_change(folder: Path, trace: Path) -> float | None:
    """When the run was last written to, in seconds since 1970; None where there is none."""
    found = []
    for path in (folder / METRICS_FILE, folder / "run.json", trace / "trace.json", trace / "000"):
        try:
            found.append(path.stat().st_mtime)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return max(found, default=None)
