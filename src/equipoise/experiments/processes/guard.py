"""guard: runs a command that must not outlive whoever asked for it.

    python guard.py LOCK COMMAND ...        LOCK: a descriptor the command inherits

Whoever starts it holds the other end of its standard input. When that closes, on purpose or because
the holder was killed, the command is asked to stop (SIGTERM: a training then writes a checkpoint),
and made to after a while. So a killed Ray worker, or a killed sweep, leaves no training behind that
nobody waits for. If the guard itself is killed, as Ray does with the children of a worker that it
ends, the kernel asks the command to stop (on Linux only). The exit code is the command's; 128 + N
if signal N ended it.

This file is run by its path and imports nothing of equipoise: it has to be there at once and cost
nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

POSIX = os.name != "nt"
PATIENCE = 300.0  # seconds a training has for its last checkpoint


def main(arguments: list[str]) -> int:
    lock, command = int(arguments[0]), arguments[1:]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=(lock,) if POSIX else (),
        start_new_session=POSIX,  # so that all of it can be told at once
        preexec_fn=_stop_with_me if sys.platform == "linux" else None,  # we have no threads yet
    )
    threading.Thread(target=_stop_when_left_alone, args=(child,), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _stop_with_me() -> None:
    """PR_SET_PDEATHSIG: the signal that a process receives when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _stop_when_left_alone(child: subprocess.Popen[bytes]) -> None:
    os.read(0, 1)  # returns when nobody holds the other end any more
    _tell(child, signal.SIGTERM)
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        _tell(child, getattr(signal, "SIGKILL", signal.SIGTERM))


def _tell(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if POSIX:
            os.killpg(child.pid, number)
        else:
            child.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
