"""The files that hold records: load, save, map, cut off. Whatever is wrong with one is a TraceError
that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.storage.atomic import replace_file
from equipoise.storage.npz import load_npz, map_npz
from equipoise.trace.error import TraceError
from equipoise.trace.layout import chunk_path, chunk_paths, first_and_last, whole_paths
from equipoise.trace.record import RECORD_COLUMNS, Columns, check_columns, cut_columns


def load_columns(path: Path, names: Sequence[str] = RECORD_COLUMNS) -> Columns:
    """Arrays of a chunk, or of a whole batch's scores, into memory."""
    try:
        columns = load_npz(path, names)
        check_columns(columns)
    except (FileNotFoundError, ValueError) as error:
        raise _unreadable(path, error) from error
    return columns


def map_scores(path: Path) -> NDArray[Any]:
    """The scores (n, E) of a chunk, or of a whole batch, as a map of the file: nothing is read
    until it is used, and what is written to the array does not reach the file.
    """
    try:
        scores = map_npz(path, "scores")
        check_columns({"scores": scores})
    except (FileNotFoundError, ValueError) as error:
        raise _unreadable(path, error) from error
    return scores


def save_columns(path: Path, columns: Columns, *, fsync: bool = False) -> None:
    with replace_file(path, fsync=fsync) as unfinished, unfinished.open("wb") as file:
        # savez's stub takes keywords it has itself, so mypy cannot see that ours are only arrays
        np.savez(file, **columns)  # type: ignore[arg-type]


def save_chunk(layer: Path, columns: Columns) -> None:
    """Write a chunk into a layer's folder, on to the disk."""
    path = chunk_path(layer, columns["step"][0], columns["step"][-1])
    save_columns(path, columns, fsync=True)


def forget_later_steps(layer: Path, after: int) -> None:
    """Delete a layer's records of steps later than `after`."""
    for path in chunk_paths(layer):
        first, last = first_and_last(path)
        if first <= after < last:
            save_chunk(layer, cut_columns(load_columns(path), after))
        if last > after:
            path.unlink()
    for step, path in whole_paths(layer).items():
        if step > after:
            path.unlink()


def _unreadable(path: Path, error: Exception) -> TraceError:
    if isinstance(error, FileNotFoundError):
        return TraceError(f"{path} is missing: the trace is incomplete, or was cut back meanwhile")
    return TraceError(f"{path} is truncated or is not of an equipoise trace: {error}")
