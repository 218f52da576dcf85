"""The oldest transformers 5 there is: an environment of its own, and the same tests in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLDEST = "5.0.0"
KEPT = ("torch", "numpy", "numba", "llvmlite", "scipy", "safetensors", "accelerate", "pytest")
FILES = (
    "attach/test_routers",
    "attach/test_every_family",
    "attach/test_trainer",
    "integrations/test_doctor",
)


def run(*command, **options):
    answer = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert answer.returncode == 0, answer.stdout[-4000:] + answer.stderr[-2000:]
    return answer.stdout


def test_the_files_are_there():
    assert all((ROOT / "tests" / f"{name}.py").is_file() for name in FILES)


@pytest.mark.slow
def test_the_oldest_transformers_is_balanced_too(tmp_path):
    """torch first and pinned, then transformers with its own choice of tokenizers and hub."""
    pins = tmp_path / "pins.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins.write_text("\n".join(line for line in lines if line.split("==")[0] in KEPT))
    run(sys.executable, "-m", "venv", str(tmp_path / "oldest"))
    python = str(tmp_path / "oldest/bin/python")
    install = (python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-c", str(pins))
    run(*install, "torch")
    run(*install, f"transformers=={OLDEST}", "accelerate", "numba", "scipy", "pytest")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    files = [f"tests/{name}.py" for name in FILES]
    command = (python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *files)
    assert "passed" in run(*command, cwd=ROOT, env=environment)
