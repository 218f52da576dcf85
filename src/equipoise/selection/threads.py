"""Kernels on plain threads: they release the GIL, and numba's own thread pools are not safe to
enter from two threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numba

_MIN_PART = 4096
"""tokens; below this a second thread costs more than it brings"""


def run_in_parts(
    n: int,
    work: Callable[[int, int], None],
    *,
    least: int = _MIN_PART,
    threads: int | None = None,
) -> None:
    """work(start, stop) over 0..n, on at most `threads` threads (by default as many as numba may
    use), in parts of at least `least`.

    The calling thread takes a part too.
    """
    parts = max(1, min(threads or _thread_count(), n // least))
    edges = [n * part // parts for part in range(parts + 1)]
    if parts == 1:
        work(0, n)
        return
    *others, last = pairwise(edges)
    running = [_thread_pool(os.getpid()).submit(work, a, b) for a, b in others]
    try:
        work(*last)
    finally:
        for done in running:
            done.result()


@cache
def _thread_pool(process: int) -> ThreadPoolExecutor:
    """One pool per process: a fork inherits the object without its threads, so it gets its own."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="equipoise")


def _thread_count() -> int:
    """All cores, or NUMBA_NUM_THREADS.

    numba.get_num_threads() would start numba's own threads, and with them change how many torch
    uses in the calling thread, whatever was set before. The configuration is set while numba loads.
    """
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
