"""Which test calls which function, and how long it takes: from one run of the tests, unchanged.

Time is the processor's, so that what else the machine does makes no test dear. A test that fails
without a mutation, or takes longer than the limit, is no judge.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

# Stands among the calls of a test that starts processes, whose calls are not seen.
STARTS_PROCESSES = "starts processes"
_STARTING = {("subprocess.py", "Popen.__init__"), ("process.py", "BaseProcess.start")}


@dataclass
class Judge:
    """A test, what it costs in seconds, and the functions it calls as "path qualified_name"."""

    test: str
    seconds: float
    calls: list[str] = field(default_factory=list)


class CallRecorder:
    """A plugin of pytest that notes the package's functions that each test calls."""

    def __init__(self, package: Path, limit: float) -> None:
        self.judges: list[Judge] = []
        self.failing: list[str] = []
        self.too_long: list[str] = []
        self._package = f"{package}/"
        self._limit = limit
        self._called: set[CodeType] = set()
        self._began = 0.0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._called.clear()
        self._failed = self._gave_up = False
        self._began = time.process_time()
        signal.signal(signal.SIGPROF, self._give_up)
        signal.setitimer(signal.ITIMER_PROF, self._limit)
        sys.settrace(self._note)
        try:
            yield
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._keep(item.nodeid, time.process_time() - self._began)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or not report.passed

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        self._called.add(frame.f_code)

    def _keep(self, test: str, seconds: float) -> None:
        if self._gave_up:
            self.too_long.append(test)
        elif self._failed:
            self.failing.append(test)
        else:
            self.judges.append(Judge(test, round(seconds, 3), sorted(self._names())))

    def _names(self) -> Iterator[str]:
        for code in self._called:
            if code.co_filename.startswith(self._package):
                yield f"{code.co_filename[len(self._package) :]} {code.co_qualname}"
            elif (Path(code.co_filename).name, code.co_qualname) in _STARTING:
                yield STARTS_PROCESSES

    def _give_up(self, number: int, frame: FrameType | None) -> None:
        self._gave_up = True
        raise TimeoutError("this test takes too long to judge by")
