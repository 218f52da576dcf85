"""Files and folders that are there whole or not at all, whatever stops the process and whenever.

A new file is written under another name, pushed to the disk (fsync) and renamed: renaming is
atomic. A folder likewise.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNFINISHED = ".unfinished-"
"""how the names of files and folders begin that are still being written, or never will be finished
"""


def write_text(path: Path, text: str) -> None:
    """Replace the file at once."""
    unfinished = path.with_name(f"{UNFINISHED}{uuid.uuid4().hex[:8]}-{path.name}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        sync(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    sync(path.parent)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill the folder that is given; when the block ends it appears at `path`, unless the block
    failed.

    If another process was faster, its folder stays and ours is thrown away.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.parent / f"{UNFINISHED}{uuid.uuid4().hex[:8]}-{path.name}"
    unfinished.mkdir()
    try:
        yield unfinished
        publish(unfinished, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def publish(unfinished: Path, path: Path) -> None:
    """Push a folder's files to the disk, then give it its name."""
    for file in sorted(unfinished.rglob("*")):
        sync(file)
    sync(unfinished)
    try:
        unfinished.rename(path)
    except OSError:
        if not path.is_dir():
            raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until the file, or the folder's list of files, is on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows has no such call for folders
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Clear away what a killed process left behind."""
    for left in folder.glob(f"{UNFINISHED}*"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Where prepared corpora are kept: $EQUIPOISE_CACHE, or a folder in the user's own cache."""
    if chosen := os.environ.get("EQUIPOISE_CACHE"):
        return Path(chosen)
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "equipoise"
    if os.uname().sysname == "Darwin":
        return Path.home() / "Library" / "Caches" / "equipoise"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "equipoise"
