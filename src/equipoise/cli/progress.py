"""A progress bar on the terminal's error stream, shown only if a person looks at it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator

Advance = Callable[[int, int], None]
"""takes how many were finished just now, and how many there are in all"""


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Advance]:
    """Does nothing where stderr is no terminal, or rich is not installed."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda finished, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task(title, total=None)
        yield lambda finished, total: bar.update(job, advance=finished, total=total)
