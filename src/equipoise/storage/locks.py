"""Locks that are released when their owner ends: files on which a process holds flock.

Why flock, and not a record with a heartbeat: the kernel releases it at the very moment its last
holder ends, however that happens. So there is no waiting for a heartbeat to grow old, no clock to
agree on, and a process that was only suspended does not wake up to find a second one at its work.
The lock is inherited: a training that outlives the process that started it still holds its trial.

What it asks for: between machines the file system must carry flock, as NFS (Linux), Lustre (mounted
with `flock`), CephFS and GPFS do. Windows has no flock: there nobody is kept out.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

RUN_LOCK = ".lock"
"""the lock's name in the folder of a training, and in that of a comparison"""
LOCK_POLL_SECONDS = 0.1


def take_lock(path: Path) -> int | None:
    """A descriptor that holds the lock until it and every inherited copy is closed; None if another
    process has the lock.
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
    except OSError:
        # the file system has no locks: an error, since working without them would corrupt results
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Wait for the lock and hold it while the block runs: for work that takes a moment."""
    while (descriptor := take_lock(path)) is None:
        time.sleep(LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder while the block runs; an error if another process holds it. Each run inside has
    a lock of its own, which its training keeps.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = take_lock(folder / RUN_LOCK)
    if descriptor is None:
        raise ValueError(
            f"another process is at work in {folder}: wait until it is done, or choose another "
            "folder"
        )
    try:
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock; None where that cannot be known: there is no such file, or
    the file system has no locks. A shared lock is asked for and released at once, so that many may
    ask at the same time.
    """
    if os.name == "nt":
        return None
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
