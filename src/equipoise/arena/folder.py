"""The folder of a contest: a file for each finished cell, and one for each stream's reference.

A file appears when its cell is done, whole or not at all, under a name that follows from everything
the cell depends on. So what is there can be read instead of run again, and several contests may
work in the same folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from equipoise.arena.cells import CELL_FORMAT, Cell
from equipoise.arena.reference import StreamReference, reference_for
from equipoise.arena.streams.stream import Stream
from equipoise.results.arena import (
    ARENA_MANIFEST,
    ArenaManifest,
    CellResult,
    DivergedCell,
    load_cell,
)
from equipoise.storage.atomic import remove_unfinished, write_json
from equipoise.storage.json_files import JsonObject, read_json_object

ABANDONED = 3600.0
"""seconds without a change after which an unfinished file belongs to no running process"""


@dataclass(frozen=True)
class ArenaFolder:
    """Reads and writes the files of a contest."""

    path: Path

    def enter(self, cells: Sequence[Cell]) -> None:
        """Make the folder, and note which cells are asked for: what a report is about."""
        self.path.mkdir(parents=True, exist_ok=True)
        # younger files may be those of another contest, which works in the same folder
        remove_unfinished(self.path, older_than=ABANDONED)
        asked: ArenaManifest = {"cells": [self.cell_path(cell).name for cell in cells]}
        if _read_if_whole(self.path / ARENA_MANIFEST) != asked:
            write_json(self.path / ARENA_MANIFEST, asked)

    def cell_path(self, cell: Cell) -> Path:
        return self.path / f"{_safe_name(cell.stream.name)}-{cell.key}.json"

    def has_cell(self, cell: Cell) -> bool:
        """Whether it is there and not damaged: otherwise it is run again."""
        return _read_if_whole(self.cell_path(cell)) is not None

    def load_cell(self, cell: Cell) -> CellResult | DivergedCell:
        path = self.cell_path(cell)
        try:
            return load_cell(path)
        except FileNotFoundError:
            raise OSError(
                f"{path} was there and is gone: does another program write to this folder?"
            ) from None

    def save_cell(self, cell: Cell, result: CellResult | DivergedCell) -> None:
        write_json(self.cell_path(cell), asdict(result))

    def find_reference(self, stream: Stream) -> StreamReference:
        """The stream's reference, worked out if it is not there yet."""
        digest = hashlib.sha256(f"{CELL_FORMAT}{stream.identity}".encode()).hexdigest()[:12]
        path = self.path / f"{_safe_name(stream.name)}-reference-{digest}.json"
        # those of 0.1 know nothing of regret, and are made again
        if (found := _read_if_whole(path)) is not None and "own_duals" in found:
            return StreamReference(**found)
        made = reference_for(stream)
        write_json(path, asdict(made))
        return made


def _safe_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)


def _read_if_whole(path: Path) -> JsonObject | None:
    """None where it is not there, or cannot be read: then it is made again."""
    try:
        return read_json_object(path)
    except (FileNotFoundError, ValueError):
        return None
