"""LayerFollower: loads and shifts of one layer of a trace, for as many steps as a screen shows.

A trace is never read whole: the names of its files say which steps they hold, and one record of
each bin of steps is read. The folder is listed anew only when it has changed.

A resumed training cuts its trace back: chunks of many records disappear (otherwise they never do),
or a file of one record is replaced by another of the same name. From that step on, records are read
again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.results.follow.step_bins import KeptRows
from equipoise.trace.chunks import load_columns
from equipoise.trace.error import TraceError
from equipoise.trace.layout import step_of_whole, steps_of_chunk

MOST_RECORDS = 320
_READ_COLUMNS = ("step", "loads", "shift", "rows")
_CLOCK_SECONDS = 1.0
"""a folder that changed so recently may have changed again within the same tick of its clock"""


class LayerRecord(NamedTuple):
    """A record without its scores."""

    loads: NDArray[np.int64]
    shift: NDArray[Any]
    sampled: int
    """tokens whose scores were kept beside it"""


class _Chunk(NamedTuple):
    name: str
    first: int
    last: int
    inode: int

    @property
    def single(self) -> bool:
        return self.first == self.last


class LayerFollower:
    """One layer's folder. `poll` looks for more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = KeptRows[LayerRecord](MOST_RECORDS)
        self.whole_steps: list[int] = []
        """of which the scores of the whole batch were kept"""
        self.last_step: int | None = None
        self.trouble = ""
        """about a file that cannot be read"""
        self.behind = False
        """whether there are records to read that a screen would show"""
        self._chunks: dict[str, _Chunk] = {}
        self._examined: dict[str, int] = {}
        """chunk -> its inode, when it was read"""
        self._listed_at: int | None = None

    def poll(self, most_files: int = MOST_RECORDS) -> bool:
        """Read at most so many files. Returns whether anything has changed."""
        changed = self._list_folder()
        if not changed and not self.behind:
            return False
        read, self.behind = 0, False
        for chunk in _spread_first(self._wanted()):
            # what was read just now may have filled the bin of this one too
            if not self.records.lacks(chunk.first, chunk.last):
                continue
            if read == most_files:
                self.behind = True
                break
            self._read_chunk(chunk)
            read += 1
        return changed or read > 0

    def _list_folder(self) -> bool:
        try:
            changed_at = self.folder.stat().st_mtime_ns
            if changed_at == self._listed_at:
                return False
            with os.scandir(self.folder) as entries:
                found = [(entry.name, entry.inode()) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            return False
        settled = time.time_ns() - changed_at > _CLOCK_SECONDS * 1e9
        self._listed_at = changed_at if settled else None
        return self._take_listing(found)

    def _take_listing(self, found: list[tuple[str, int]]) -> bool:
        chunks, whole = {}, []
        for name, inode in found:
            if steps := steps_of_chunk(name):
                chunks[name] = _Chunk(name, *steps, inode)
            elif (step := step_of_whole(name)) is not None:
                whole.append(step)
        self._forget_cut(chunks)
        changed = chunks != self._chunks or sorted(whole) != self.whole_steps
        self._chunks, self.whole_steps = chunks, sorted(whole)
        self._examined = {n: inode for n, inode in self._examined.items() if n in chunks}
        if chunks:
            first = min(each.first for each in chunks.values())
            self.last_step = max(each.last for each in chunks.values())
            self.records.widen_to(first, self.last_step)
        return changed

    def _forget_cut(self, chunks: dict[str, _Chunk]) -> None:
        """Forget records from the first step on that was cut off or written again."""
        last = max((each.last for each in chunks.values()), default=-1)
        cut = [last + 1]
        for name, each in self._chunks.items():
            now = chunks.get(name)
            gone = now is None and not each.single
            if gone or (now is not None and now.inode != each.inode):
                cut.append(each.first)
                self._examined.pop(name, None)
        self.records.forget_from(min(cut))
        for name, each in chunks.items():
            if each.last >= min(cut):
                self._examined.pop(name, None)

    def _wanted(self) -> list[_Chunk]:
        """Chunks with a record that a screen would show and that was not read, in order."""
        return sorted(
            (
                each
                for each in self._chunks.values()
                if self._examined.get(each.name) != each.inode
                and self.records.lacks(each.first, each.last)
            ),
            key=lambda each: each.first,
        )

    def _read_chunk(self, chunk: _Chunk) -> None:
        path = self.folder / chunk.name
        try:
            columns = load_columns(path, _READ_COLUMNS)
        except TraceError as error:
            if path.exists():
                self.trouble = str(error)
                self._examined[chunk.name] = chunk.inode
            else:
                # joined to a chunk of many meanwhile: the next look finds it there
                self._chunks.pop(chunk.name, None)
                self._listed_at = None
            return
        self._examined[chunk.name] = chunk.inode
        for row, step in enumerate(columns["step"].tolist()):
            if self.records.lacks(step, step):
                record = LayerRecord(
                    columns["loads"][row], columns["shift"][row], int(columns["rows"][row])
                )
                self.records.add(step, record)


def _spread_first(chunks: list[_Chunk]) -> list[_Chunk]:
    """Every sixteenth first, then those between: part of them is the whole training, coarsely."""
    order = [chunk for start in (0, 8, 4, 12) for chunk in chunks[start::16]]
    taken = {chunk.name for chunk in order}
    return order + [chunk for chunk in chunks if chunk.name not in taken]
