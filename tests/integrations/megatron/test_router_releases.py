"""The tests of test_router.py under other releases of megatron-core, fetched into a folder.

Those from 0.17 on want Python 3.12 on paper, and run on 3.11. From 0.18 on they import triton.
The oldest, the newest and one between are tried; all of them with EQUIPOISE_TEST_RELEASES=all.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RELEASES = {
    "0.12.0": (),
    "0.13.0": (),
    "0.14.0": (),
    "0.15.0": (),
    "0.16.0": (),
    "0.17.1": (),
    "0.18.0": ("triton==3.9.0",),
    "0.19.0": ("triton==3.9.0",),
}


ALL = os.environ.get("EQUIPOISE_TEST_RELEASES") == "all"
TRIED = RELEASES if ALL else ("0.12.0", "0.17.1", "0.19.0")


@pytest.mark.slow
@pytest.mark.parametrize("release", TRIED)
def test_release_has_our_router(release, tmp_path):
    pytest.importorskip("megatron.core")
    options = "install --quiet --no-deps --ignore-requires-python --only-binary :all: --target"
    packages = [f"megatron-core=={release}", *RELEASES[release]]
    fetch = [sys.executable, "-m", "pip", *options.split(), str(tmp_path), *packages]
    fetched = subprocess.run(fetch, capture_output=True, text=True, check=False)
    if fetched.returncode:
        pytest.skip(f"megatron-core {release} cannot be fetched: {fetched.stderr[-300:]}")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    tests = str(Path(__file__).with_name("test_router.py").relative_to(ROOT))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    finished = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "EQUIPOISE_TEST_MEGATRON": release},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-2000:]
