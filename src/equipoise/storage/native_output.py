"""What compiled libraries print by themselves, past Python's sys.stdout.

HiGHS, which scipy's milp calls, has lines of debugging that no option turns off. Among what --json
prints they would make it no JSON.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

_STDOUT = 1


@contextlib.contextmanager
def native_output_dropped() -> Iterator[None]:
    """Within it, nothing that is written to file descriptor 1 arrives: Python's print neither.

    It is the whole process's descriptor, so this is for a program's own top, not for a library.
    """
    sys.stdout.flush()
    try:
        kept = os.dup(_STDOUT)
    except OSError:
        # there is no stdout to keep clean
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, _STDOUT)
        yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)
        os.close(nowhere)
