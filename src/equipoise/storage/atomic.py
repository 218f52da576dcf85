"""Files and folders that are there whole or not at all, whatever stops the process and whenever.

A new file is written under another name in the same folder, pushed to the disk (fsync) and renamed:
renaming is atomic, so a reader finds the old version or the new one, never half of either. A folder
likewise. Everything this package writes goes through `replace_file` or `new_folder`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

UNFINISHED = ".unfinished-"
"""how the name of a file or folder begins while it is written. One that is still there after its
process has ended is garbage: `remove_unfinished`."""


@contextlib.contextmanager
def replace_file(path: Path, *, fsync: bool = True) -> Iterator[Path]:
    """Fill the file at the path that is given; when the block ends it replaces `path`, unless the
    block failed.

        with replace_file(folder / "scores.npz") as unfinished, unfinished.open("wb") as file:
            np.savez(file, scores=scores)

    Args:
        path: of the file; its folder must exist.
        fsync: wait until the file is on the disk. Without it a killed process loses nothing, but a
            power failure may.
    """
    unfinished = _unfinished_path(path)
    try:
        yield unfinished
        if fsync:
            sync_to_disk(unfinished)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if fsync:
        sync_to_disk(path.parent)


def write_bytes(path: Path, content: bytes, *, fsync: bool = True) -> None:
    """Replace the file at once."""
    with replace_file(path, fsync=fsync) as unfinished:
        unfinished.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Replace the file at once; UTF-8, and line ends as they are in `text` on every system."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: object) -> None:
    """Replace the file at once. `read_json` of storage.json_files reads it."""
    write_text(path, json.dumps(content, indent=2) + "\n")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill the folder that is given; when the block ends it appears at `path`, unless the block
    failed.

    If another process was faster, its folder stays and ours is deleted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished_path(path)
    unfinished.mkdir()
    try:
        yield unfinished
        publish_folder(unfinished, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def publish_folder(unfinished: Path, path: Path) -> None:
    """Push a folder's files to the disk, then rename it to `path`, unless a folder is there."""
    for file in sorted(unfinished.rglob("*")):
        sync_to_disk(file)
    sync_to_disk(unfinished)
    try:
        unfinished.rename(path)
    except OSError:
        if not path.is_dir():
            raise
    sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Wait until the file, or the folder's list of files, is on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no such call for folders
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path, *, older_than: float = 0.0) -> None:
    """Delete what killed processes left in `folder`: what was not changed for `older_than` seconds.
    With 0 nobody may be writing there.
    """
    for left in folder.glob(f"{UNFINISHED}*"):
        if older_than and _age(left) <= older_than:
            continue
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Seconds since the last change; 0 if it is gone, because it was finished meanwhile."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _unfinished_path(path: Path) -> Path:
    """Unique, so that two processes that write one file do not write into each other's."""
    return path.with_name(f"{UNFINISHED}{uuid.uuid4().hex[:8]}-{path.name}")
