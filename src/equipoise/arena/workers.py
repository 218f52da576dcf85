"""Workers of a contest: they leave with the process that started them, and say what they do.

A pool's worker waits for work on a pipe. If its parent is killed, nobody closes that pipe: the
worker would wait for ever, with all the memory that torch takes. So each watches its parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

    JobQueue = SimpleQueue[tuple[int, str]]

_queue: JobQueue | None = None
"""in a worker: where it notes what it begins"""


def end_with_parent(queue: JobQueue, temporary: Path | None = None) -> None:
    """A pool's initializer: from now on this process ends when its parent does, however that ended
    (SIGTERM, SIGHUP, SIGKILL). Files are written whole or not at all, so that only time is lost.

    Args:
        queue: where it notes what it begins.
        temporary: a folder that is deleted then, since the parent cannot any more.
    """
    global _queue
    _queue = queue
    threading.Thread(target=_leave_after_parent, args=(temporary,), daemon=True).start()


def _leave_after_parent(temporary: Path | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        # the end of a pipe, which the kernel closes with the parent
        multiprocessing.connection.wait([parent.sentinel])
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        os._exit(1)


@contextlib.contextmanager
def leave_on_signals() -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP end this process by SystemExit, so that what it holds is
    released. Where somebody else handles them, or in another thread, nothing changes.
    """
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = threading.current_thread() is threading.main_thread()
    changed = [
        number
        for number in (getattr(signal, name) for name in names if ours)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in changed:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def note_job(name: str) -> None:
    """Note what this worker begins; outside a pool nobody asks."""
    if _queue is not None:
        _queue.put((os.getpid(), name))


class JobNotes:
    """What each worker began last: known to the parent also when the worker was killed."""

    def __init__(self, context: BaseContext) -> None:
        self.queue: JobQueue = context.SimpleQueue()
        self._newest: dict[int, str] = {}

    def collect(self) -> None:
        """Read what is there, so that the pipe never fills."""
        while not self.queue.empty():
            worker, name = self.queue.get()
            self._newest[worker] = name

    def describe_killed(self, pool: ProcessPoolExecutor) -> str:
        """Which worker ended a broken pool, by which signal, and what it was doing."""
        self.collect()
        for process in list((pool._processes or {}).values()):
            process.join(5)
            # the pool ends all others with SIGTERM
            if process.pid is not None and process.exitcode not in (None, 0, -signal.SIGTERM):
                job = self._newest.get(process.pid, "nothing yet")
                return (
                    f"the worker {process.pid} ended with code {process.exitcode} while it ran "
                    f"{job} (out of memory, or killed; --workers sets how many run at once)"
                )
        jobs = ", ".join(self._newest.values())
        return f"a worker was killed; last begun by all of them: {jobs}"
