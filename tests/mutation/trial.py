"""A mutant before its judges: killed by a test, by a limit or a crash, or survived."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.call_map import CallRecorder, Judge
from tests.mutation.forked import QUIET, FirstFailure, HardLimit, in_child
from tests.mutation.mutants import Mutant
from tests.mutation.source_copy import SourceCopy, use_cache

# A test may take ten times as long as without the mutant, and this many seconds in any case: by
# the clock, so that a test that waits forever is ended too.
LEAST_LIMIT, TIMES = 40.0, 10.0
# What a mutant of a kernel may take more: the first test of it waits for numba.
COMPILING = 90.0
# Before the first test: imports, and kernels that they compile.
START_LIMIT = 240.0


def record_judges(tests: str, copy: SourceCopy, limit: float) -> dict[str, Any]:
    """The judges in a file of tests, from a run of it without a mutant."""

    def work() -> dict[str, Any]:
        _settle(copy.sources, copy.warm_cache)
        before = set(sys.modules)
        recorder = CallRecorder(copy.package, limit)
        pytest.main([*QUIET, "-m", "not slow", tests], plugins=[recorder])
        return {
            "judges": [vars(each) for each in recorder.judges],
            "failing": recorder.failing,
            "too_long": recorder.too_long,
            "modules": sorted(set(sys.modules) - before),
        }

    outcome, answer = in_child(work, limit=1200.0)
    if outcome != "done" or "error" in answer:
        raise RuntimeError(f"{tests} cannot be run without a mutant: {outcome}, {answer}")
    return answer


def judge(mutant: Mutant | None, judges: list[Judge], copy: SourceCopy) -> dict[str, Any]:
    """The verdict on a mutant, or, for None, on the copy as it is."""
    began = time.monotonic()
    if mutant is None:
        verdict = _run(judges, copy.sources, copy.warm_cache, COMPILING)
    else:
        with copy.holding(mutant) as cache:
            extra = 0.0 if cache == copy.warm_cache else COMPILING
            verdict = _run(judges, copy.sources, cache, extra)
    return {**verdict, "tests": len(judges), "seconds": round(time.monotonic() - began, 2)}


def _run(judges: list[Judge], sources: Path, cache: Path, extra: float) -> dict[str, str]:
    def work() -> dict[str, Any]:
        _settle(sources, cache)
        first = FirstFailure()
        seconds = {each.test: each.seconds for each in judges}
        limit = HardLimit(seconds, LEAST_LIMIT + extra, TIMES)
        names = [each.test for each in judges]
        code = pytest.main([*QUIET, "-x", "-m", "not slow", *names], plugins=[first, limit])
        if code == pytest.ExitCode.USAGE_ERROR:
            # a mutant that changes a list changes the names of the cases made from it
            files = list(dict.fromkeys(name.split("::")[0] for name in names))
            code = pytest.main([*QUIET, "-x", "-m", "not slow", *files], plugins=[first, limit])
        return {"code": int(code), "by": first.name}

    if not judges:
        return {"verdict": "survived", "by": "", "how": "no test calls it"}
    outcome, answer = in_child(work, limit=START_LIMIT)
    if outcome != "done":
        return {"verdict": "killed", "by": "", "how": outcome}
    if "error" in answer:
        return {"verdict": "killed", "by": answer["error"].splitlines()[-1], "how": "error"}
    killed = answer["code"] != pytest.ExitCode.OK
    return {
        "verdict": "killed" if killed else "survived",
        "by": answer["by"],
        "how": "test" if killed else "",
    }


def _settle(sources: Path, cache: Path) -> None:
    """In the child: the copy comes first for it and its children, and nothing depends on chance."""
    import hypothesis

    sys.dont_write_bytecode = True
    sys.path.insert(0, str(sources))
    os.environ.update(
        PYTHONPATH=str(sources), NUMBA_CACHE_DIR=str(cache), PYTHONDONTWRITEBYTECODE="1"
    )
    use_cache(cache)
    hypothesis.settings.register_profile("mutation", database=None, derandomize=True)
    hypothesis.settings.load_profile("mutation")
