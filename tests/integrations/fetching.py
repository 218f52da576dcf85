"""Run tests in a process that has packages which are not among our dependencies."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def fetch(folder, *packages):
    """Install packages alone, without what they depend on: never another torch.

    The folder is called site-packages: dill, which TRL's datasets use, takes what lies elsewhere
    for the user's own code, and tries to pickle it whole.
    """
    target = folder / "site-packages"
    install = ["install", "--quiet", "--no-deps", "--target", str(target), *packages]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    return target


def run_python(target, *arguments, cwd=ROOT):
    """Python with those packages and our sources; its output if it ends well."""
    path = os.pathsep.join([str(target), str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    shown = finished.stdout[-4000:] + finished.stderr[-4000:]
    assert finished.returncode == 0, shown
    return finished.stdout


def run_tests(target, path, pattern, passed):
    """Tests of one file whose names hold a pattern: as many must pass, and none be skipped."""
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", pattern]
    output = run_python(target, "-m", "pytest", *options, str(path))
    assert f"{passed} passed" in output, output[-3000:]
    assert "skipped" not in output, output[-3000:]
