"""The folder for what can be made again but takes long: prepared corpora."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$EQUIPOISE_CACHE, or a folder in the user's own cache. It may not exist yet."""
    if chosen := os.environ.get("EQUIPOISE_CACHE"):
        return Path(chosen)
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "equipoise"
    if os.uname().sysname == "Darwin":
        return Path.home() / "Library" / "Caches" / "equipoise"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "equipoise"
