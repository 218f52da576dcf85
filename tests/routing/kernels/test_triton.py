"""The Triton kernels without a GPU: in the interpreter, and as machine code that is counted.

triton is no dependency (torch for CUDA brings it), so slow tests fetch it, 250 MB, into a folder.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRITON = "triton==3.9.0"
BUDGET = 400
"""warp instructions a token at E = 256, K = 8, for shift, top-(K+1), runner-up and loads"""


@pytest.fixture(scope="module")
def with_triton(tmp_path_factory):
    """Runs a module of the tests where triton is installed."""
    folder = tmp_path_factory.mktemp("triton")
    fetch = ["install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target", folder]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, fetch), TRITON], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"{TRITON} cannot be had here: {done.stderr.strip()[-200:]}")

    def run(*words, **more):
        places = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(folder)])
        environment = {**os.environ, "PYTHONPATH": places, "TRITON_CACHE_DIR": str(folder / "c")}
        environment |= {"TRITON_DEFAULT_FP_FUSION": "0", **more}
        return subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True
        )

    return run


@pytest.mark.slow
def test_the_interpreter_agrees_with_the_reference(with_triton):
    cases = "tests/routing/kernels/triton_cases.py"
    done = with_triton("-m", "pytest", "-q", "-p", "no:cacheprovider", cases, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


@pytest.mark.slow
def test_machine_code_keeps_its_budget(with_triton):
    done = with_triton("-m", "tests.routing.kernels.triton_static")
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)
    assert {row["arch"] for row in rows} == {80, 90, 100}
    for row in rows:
        assert row["rank"]["spilled"] == row["bins"]["spilled"] == 0, row
        if (row["E"], row["K"]) == (256, 8):
            issued = row["warps"] * row["rank"]["instructions"]
            # measured 377 to 383 with triton 3.9.0
            assert issued <= BUDGET, row
            # every fourth token is in curvature's histogram at this shape
            with_counts = issued + row["warps"] * row["bins"]["instructions"] / 4
            assert with_counts <= 1.3 * issued, row
