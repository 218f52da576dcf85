"""guard: runs a command that must not outlive the process that asked for it.

    python guard.py LOCK COMMAND ...        LOCK: a descriptor the command inherits

The process that starts the guard holds the other end of its standard input. When that closes, on
purpose or because the holder was killed, the command is asked to stop (SIGTERM: a training then
writes a checkpoint), and killed if it takes too long. So a killed Ray worker, or a killed sweep,
leaves no training behind that nobody waits for. If the guard itself is killed, as Ray does with the
children of a worker that it ends, the kernel asks the command to stop (on Linux only). The exit
code is the command's; 128 + N if signal N ended it.

This file is run by its path and imports nothing of equipoise: it must start at once and cost
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
STOP_SECONDS = 300.0
"""what a training has for its last checkpoint"""
PR_SET_PDEATHSIG = 1
"""of prctl: the signal that a process receives when its parent ends"""


def guard_command(arguments: list[str]) -> int:
    """Run `LOCK COMMAND ...` to its end, and return the exit code."""
    lock, command = int(arguments[0]), arguments[1:]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        pass_fds=(lock,) if POSIX else (),
        # a process group of its own, so that all of it receives a signal
        start_new_session=POSIX,
        # safe, since there are no threads yet
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )
    threading.Thread(target=_stop_at_end_of_input, args=(child,), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _stop_at_end_of_input(child: subprocess.Popen[bytes]) -> None:
    os.read(0, 1)  # returns when nobody holds the other end any more
    _signal_group(child, signal.SIGTERM)
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        _signal_group(child, getattr(signal, "SIGKILL", signal.SIGTERM))


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if POSIX:
            os.killpg(child.pid, number)
        else:
            child.terminate()


if __name__ == "__main__":
    sys.exit(guard_command(sys.argv[1:]))
