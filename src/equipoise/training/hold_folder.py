"""hold_folder: one training at a time in a folder.

Two that append to the same metrics and replace each other's checkpoints would both seem to work. So
the first rank holds a lock (storage/locks.py) that the kernel releases when its process ends,
however it ends. It is another file than the lock of a sweep or a comparison, which a training
inherits: the two do not meet.
"""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from equipoise.storage.locks import take_lock
from equipoise.training.ranks import World

TRAINING_LOCK = ".training.lock"
NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}
"""how file systems say that they have none"""


@contextlib.contextmanager
def hold_folder(folder: Path, world: World) -> Iterator[None]:
    """Hold a training's folder while the block runs; an error on all ranks if another process does.
    A file system without locks gives a warning only: a single training is right there too.
    """
    held: int | None = None
    refused = False
    if world.first:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            held = take_lock(folder / TRAINING_LOCK)
            refused = held is None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            warnings.warn(
                f"{folder} is on a file system without locks ({error.strerror}): make sure that no "
                "other process trains there",
                stacklevel=2,
            )
    try:
        if any(world.sum([float(refused)])):
            raise ValueError(
                f"another process is training in {folder}: wait until it is done, or choose "
                "another --out"
            )
        yield
    finally:
        if held is not None:
            os.close(held)
