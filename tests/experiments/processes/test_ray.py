"""The sweep on a real Ray cluster of this machine: trainings that finish, one that crashes, and a
worker that is killed.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from equipoise.experiments.sweep.grid import Grid
from equipoise.experiments.sweep.sweep import sweep
from tests.experiments.conftest import SETTINGS

ray = pytest.importorskip("ray", reason="no ray: its engine is not tried")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """Two CPUs, little memory, no dashboard; in Ray's own folder, since its sockets have names of
    at most 107 letters.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield started().address_info["gcs_address"]
        ray.shutdown()


def started(tries=4):
    """Ray gives its parts 30 seconds to start; a busy machine may need a second round."""
    try:
        return ray.init(
            # not whatever cluster another session left the address of
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except Exception:
        ray.shutdown()
        if tries == 1:
            raise
        return started(tries - 1)


@pytest.fixture
def base(texts):
    model = {f"model.{name}": value for name, value in SETTINGS["model"].items()}
    return {
        "data": str(texts),
        **{name: value for name, value in SETTINGS.items() if name != "model"},
        **model,
    }


def test_a_crash_stops_nobody(cluster, base, tmp_path):
    grid = Grid(
        "ray",
        base,
        [{"balancer": ["deepseek"], "learning_rate": [1e-3, 1e30]}, {"balancer": ["none"]}],
    )
    found = sweep(grid, tmp_path, engine="ray")
    assert [each["trial"] for each in found["failed"]] == ["deepseek_lr=1e+30"]
    assert "norm of the gradient of step 2 is nan" in found["failed"][0]["error"]
    assert found["unfinished"] == []
    assert {row["scheme"] for row in found["best"]} == {"deepseek", "none"}
    assert not (tmp_path / "trials/none/checkpoints").exists()


def test_a_killed_worker_costs_a_try(cluster, base, tmp_path):
    killed = []

    def kill():
        """The Ray worker that waits for the training, as soon as that has made a step."""
        metrics = tmp_path / "trials/seed=0/metrics.jsonl"
        while not metrics.exists() or metrics.stat().st_size < 2000:
            time.sleep(0.05)
        killed.append(parent_of_guard("seed=0"))
        os.kill(killed[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    steps = {**base, "steps": 400, "evaluate_every": 0, "checkpoint_every": 0}
    found = sweep(Grid("ray", steps, [{"seed": [0, 1]}]), tmp_path, engine="ray")
    assert killed
    assert found["failed"] == []
    assert found["rows"][0]["finished"] == 2


def test_a_killed_training_costs_a_try_under_torchrun(cluster, base, tmp_path):
    """Two ranks; one of them is killed."""
    killed = []

    def kill():
        metrics = tmp_path / "trials/seed=0/metrics.jsonl"
        while not metrics.exists() or metrics.stat().st_size < 2000:
            time.sleep(0.05)
        killed.extend(
            pid
            for pid, line in processes()
            if "seed=0" in line and "train" in line and "run" not in line
        )
        os.kill(killed[-1], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    steps = {**base, "steps": 80, "evaluate_every": 0, "checkpoint_every": 10}
    grid = Grid("ray", steps, [{"seed": [0]}])
    found = sweep(grid, tmp_path, engine="ray", cpus_per_trial=2, processes_per_trial=2)
    assert len(killed) >= 2
    assert found["failed"] == []
    assert '"ranks": 2' in (tmp_path / "trials/seed=0/result.json").read_text()


def test_the_command_finds_a_cluster(cluster, base, tmp_path):
    (tmp_path / "grid.yaml").write_text(f"base: {base}\naxes: {{seed: [0]}}".replace("'", '"'))
    words = ["sweep", "grid.yaml", "--engine", "ray", "--address", cluster, "--out", "found"]
    answer = subprocess.run(
        [sys.executable, "-m", "equipoise", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "found/trials/seed=0/result.json").exists()


def processes():
    for path in os.listdir("/proc"):
        if path.isdigit():
            try:
                yield int(path), Path(f"/proc/{path}/cmdline").read_text().replace("\0", " ")
            except OSError:
                continue


def parent_of_guard(trial):
    guard = next(pid for pid, line in processes() if "guard.py" in line and trial in line)
    return int(Path(f"/proc/{guard}/stat").read_text().rsplit(")", 1)[1].split()[1])
