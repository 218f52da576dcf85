"""torchtitan itself, fetched: our routers in every release that has its MoE layer.

It wants triton, wandb, tensorboard and an older datasets, hundreds of megabytes of which models
need none to be trained. So torchtitan alone (1.4 MB) and two small packages go into a folder, and
this folder's other tests run in a process that finds them there.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
SMALL = ["spmd_types==0.2.3", "tyro", "typeguard", "docstring-parser", "shtab"]


def fetch(folder, *packages):
    wanted = ["install", "--quiet", "--no-deps", "--target", str(folder), *packages]
    finished = subprocess.run(
        [sys.executable, "-m", "pip", *wanted], capture_output=True, text=True, check=False
    )
    if finished.returncode:
        pytest.skip(f"{packages[0]} cannot be fetched: {finished.stderr.strip()[-200:]}")


def run_with(folder, *arguments):
    path = os.pathsep.join([str(folder), str(ROOT / "src"), str(ROOT)])
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-2000:]
    return finished.stdout


def run_tests(folder, *names):
    files = [str((HERE / name).relative_to(ROOT)) for name in names]
    shown = run_with(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    assert "passed" in shown
    assert "is not installed" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.2.0", "0.3.0"])
def test_its_layer_has_our_router(version, tmp_path):
    fetch(tmp_path, f"torchtitan=={version}", *SMALL)
    run_tests(tmp_path, "test_real_layers.py", "test_loads_hook.py")


@pytest.mark.slow
def test_its_debug_model_trains_on_one_rank_and_on_two(tmp_path):
    fetch(tmp_path, "torchtitan==0.3.0", *SMALL)
    run_tests(tmp_path, "test_real_models.py")
    shown = run_with(tmp_path, "examples/balance_torchtitan.py")
    assert "imbalance" in shown


@pytest.mark.slow
def test_triton_may_be_installed(tmp_path):
    """Then torchtitan imports its kernels for GPUs, and no stand-in is needed."""
    fetch(tmp_path, "torchtitan==0.3.0", "triton", *SMALL)
    run_tests(tmp_path, "test_real_layers.py", "test_loads_hook.py")
