"""Layout, version 1: which file of a trace's folder holds what.

    trace.json                    the header (header.py)
    000/                          a folder for each layer, numbered in the header's order
        000000000-000000127.npz   a chunk of records, named by its first and last step
        000000128-000000128.npz   a record that is not yet in a chunk of many: a chunk of one
        000000100.whole.npz       scores (T, E) of a whole batch, in a file of their own so that
                                  nothing loads them by accident

The arrays of a chunk of R records (record.py):

    step, unit, whole, rows                  (R)
    shift, shift_after, loads, step_size     (R, E)
    scores                                   (sum of rows, E): the samples one below the other

A record is written at once to a file of its own; when there are 128 they are joined to one chunk.
So 10,000 steps of 10 layers are 790 chunks and at most 1,280 small files. Every file is written
under another name and renamed when complete (storage/atomic.py): a process killed at any moment
leaves a readable trace with all appended records. (A power failure may lose some: only chunks of
many are synced.) Nothing is pickled, neither writing nor reading.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MOST_STEPS = 10**9
"""steps have nine digits in the names of files"""
CHUNK_RECORDS = 128


def is_trace(folder: str | os.PathLike[str]) -> bool:
    """Whether the folder holds a trace."""
    return header_path(Path(folder)).exists()


def header_path(folder: Path) -> Path:
    return folder / "trace.json"


def layer_folder(folder: Path, index: int) -> Path:
    return folder / f"{index:03}"


def chunk_path(layer: Path, first: int, last: int) -> Path:
    """The chunk of the steps from `first` to `last`, both included, in a layer's folder."""
    return layer / f"{first:09}-{last:09}.npz"


def whole_path(layer: Path, step: int) -> Path:
    """All scores of the batch of a step."""
    return layer / f"{step:09}.whole.npz"


def chunk_paths(layer: Path) -> list[Path]:
    """All chunks in order. Exactly as long as their names: never a file that is still written."""
    return sorted(layer.glob(f"{'?' * 9}-{'?' * 9}.npz"))


def whole_paths(layer: Path) -> dict[int, Path]:
    """The files of whole batches, by step."""
    return {int(path.name[:9]): path for path in sorted(layer.glob(f"{'?' * 9}.whole.npz"))}


def first_and_last(chunk: Path) -> tuple[int, int]:
    """The first and the last step of a chunk."""
    first, last = chunk.stem.split("-")
    return int(first), int(last)


def steps_of_chunk(name: str) -> tuple[int, int] | None:
    """The first and the last step of a chunk, by its file's name; None for another file."""
    found = re.fullmatch(r"(\d{9})-(\d{9})\.npz", name)
    return (int(found[1]), int(found[2])) if found else None


def step_of_whole(name: str) -> int | None:
    """The step of a whole batch's scores, by its file's name; None for another file."""
    found = re.fullmatch(r"(\d{9})\.whole\.npz", name)
    return int(found[1]) if found else None


def holds_one_record(chunk: Path) -> bool:
    first, last = first_and_last(chunk)
    return first == last
