"""Stopping when asked to: after SIGTERM or Ctrl-C the step that is running ends, a checkpoint is
written, and the process ends.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Stopped(KeyboardInterrupt):
    """Training stopped before its last step because it was asked to; a checkpoint was written."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class StopSignals:
    """Notes signals while the block runs. A second Ctrl-C interrupts at once."""

    received: int = 0
    """the number of the signal that came, or 0"""

    def __enter__(self) -> StopSignals:
        self._before: dict[int, Any] = {}
        # Python allows handlers in the main thread only
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._receive)
                for number in (signal.SIGTERM, signal.SIGINT)
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
