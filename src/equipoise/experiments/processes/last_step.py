"""last_step: the newest line of a training that may be running."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import cast

from equipoise.results.run import METRICS_FILE, StepMetrics

LAST_BYTES = 65536
"""read from the end of metrics.jsonl: more than one line, however many layers there are"""


def read_last_step(folder: Path) -> StepMetrics | None:
    """The newest step of a run, from the end of its metrics.jsonl; None before the first one."""
    path = folder / METRICS_FILE
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        # not JSON: a line that is being written, or the one cut by the seek
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and row.get("kind") == "train":
                return cast(StepMetrics, row)
    return None
