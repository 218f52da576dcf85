"""pytest in a forked child: torch and its friends are imported once, in the parent.

The child imports the package afresh, from the copy that holds the mutant.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

QUIET = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
PRELOADED = ("torch", "numpy", "scipy", "numba", "pytest", "hypothesis", "transformers")


class HardLimit:
    """A plugin that ends the process when a test takes too long, in compiled code too."""

    def __init__(self, seconds: dict[str, float], least: float, times: float) -> None:
        self._seconds, self._least, self._times = seconds, least, times
        self._nowhere = open(os.devnull, "w")  # noqa: SIM115

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        limit = max(self._least, self._times * self._seconds.get(item.nodeid, 0.0))
        faulthandler.dump_traceback_later(limit, exit=True, file=self._nowhere)
        yield
        faulthandler.cancel_dump_traceback_later()


class FirstFailure:
    """A plugin that remembers the first test that failed, or the file that cannot be imported."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name = f"{report.nodeid} (import)"


def preload(modules: tuple[str, ...] = PRELOADED) -> None:
    """Import what every child needs; what is not installed is left out."""
    for name in modules:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)


def in_child(work: Callable[[], Any], limit: float) -> tuple[str, Any]:
    """What work returns in a child: ("done", it), or ("timeout", None), or ("crash", status)."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer")
        child = os.fork()
        if child == 0:
            _work_and_leave(work, answer, limit)
        _, status = os.waitpid(child, 0)
        _end_what_it_left(child)
        if answer.is_file():
            return "done", json.loads(answer.read_text())
        ended_by_limit = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1
        return ("timeout", None) if ended_by_limit else ("crash", status)


def _end_what_it_left(child: int) -> None:
    """Ranks and other processes of a test that was ended: they are in the child's session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def _work_and_leave(work: Callable[[], Any], answer: Path, limit: float) -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.stdout = sys.stderr = io.StringIO()
    faulthandler.dump_traceback_later(limit, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115
    try:
        result = json.dumps(work())
    except BaseException:
        result = json.dumps({"error": traceback.format_exc()})
    part = answer.with_suffix(".part")
    part.write_text(result)
    part.rename(answer)
    os._exit(0)
