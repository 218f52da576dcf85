"""Locks that die with their owner: files on which a process holds flock.

Why flock, and not a record with a heartbeat: the kernel lets go of it at the very moment its last
holder ends, however that happens, so there is no waiting for a heartbeat to grow old, no clock to
agree on, and nobody who was only suspended wakes up to find a second one at work. It is inherited:
a training that outlives the one who started it still holds its trial.

What it asks for: between machines the file system must carry flock, as NFS (Linux), Lustre (mounted
with `flock`), CephFS and GPFS do. Windows has none: there nobody is kept out.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

POLL = 0.1


def take(path: Path) -> int | None:
    """A descriptor that holds the lock until it and every inherited copy is closed; None if
    somebody else has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    if os.name == "nt":
        return descriptor
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # the file system has no locks: say so, do not go on without
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait for the lock and hold it while the block runs: for what takes a moment."""
    while (descriptor := take(path)) is None:
        time.sleep(POLL)
    try:
        yield
    finally:
        os.close(descriptor)
