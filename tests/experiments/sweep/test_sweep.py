"""The sweep: every trial once, nothing lost, nothing taken from another. Trainings are stood in for
(fake_training.py).
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from equipoise.experiments.processes import attempt, job
from equipoise.experiments.sweep.grid import Grid
from equipoise.experiments.sweep.sweep import sweep
from equipoise.storage import locks
from equipoise.training import Stopped

FAKE = Path(__file__).with_name("fake_training.py")
SWEEP = f"""
from equipoise.experiments.processes import attempt, job
from equipoise.experiments.sweep import sweep
from equipoise.experiments.sweep.grid import Grid
job.training_command = lambda wanted, _: [{sys.executable!r}, {str(FAKE)!r}, str(wanted)]
sweep.prepare_corpus = lambda *_, **__: None
sweep.sweep(Grid("test", {{}}, [{{"seed": [60]}}]), "out")
"""


@pytest.fixture(autouse=True)
def faked(monkeypatch):
    monkeypatch.setattr(
        job,
        "training_command",
        lambda wanted, processes: [sys.executable, str(FAKE), str(wanted)],
    )
    monkeypatch.setattr("equipoise.experiments.sweep.sweep.prepare_corpus", lambda *_, **__: None)


def grid(**axes):
    return Grid("test", {"steps": 1}, [axes])


def begun(folder):
    return {path.parent.name: path.stat().st_size for path in folder.glob("trials/*/begun")}


def test_the_best_has_the_lowest_loss(tmp_path):
    found = sweep(
        grid(balancer=["deepseek", "aux"], learning_rate=[0.3, 0.1, 0.2], seed=[0, 1]),
        tmp_path,
        workers=3,
    )
    assert [row["settings"]["learning_rate"] for row in found["rows"]] == [
        0.1,
        0.1,
        0.2,
        0.2,
        0.3,
        0.3,
    ]
    assert [(row["label"], row["settings"]) for row in found["best"]] == [
        ("u/|L-A| (DeepSeek)", {"balancer": "deepseek", "learning_rate": 0.1}),
        ("auxiliary loss", {"balancer": "aux", "learning_rate": 0.1}),
    ]
    assert found["best"][0]["validation_loss"] == pytest.approx(5.1)
    assert found["best"][0]["at_the_end"] == ["learning_rate"]
    assert [row["finished"] for row in found["rows"]] == [2] * 6
    assert json.loads((tmp_path / "table.json").read_text()) == found


def test_finished_ones_are_not_repeated(tmp_path):
    sweep(grid(seed=[0, 1]), tmp_path)
    sweep(grid(seed=[0, 1]), tmp_path)
    sweep(grid(seed=[0, 1, 2]), tmp_path)  # a grid may grow
    assert begun(tmp_path) == {"seed=0": 1, "seed=1": 1, "seed=2": 1}


def test_a_failure_is_recorded_and_stops_nobody(tmp_path):
    found = sweep(grid(learning_rate=[0.1, 0.2], seed=[13, 1]), tmp_path)
    assert [each["trial"] for each in found["failed"]] == ["lr=0.1_seed=13", "lr=0.2_seed=13"]
    assert "the loss is not finite\n(exit code 1)" in found["failed"][0]["error"]
    assert found["best"] == []  # a mean over the seeds that went well is no fair one
    assert [row["finished"] for row in found["rows"]] == [1, 1]
    sweep(grid(learning_rate=[0.1, 0.2], seed=[13, 1]), tmp_path)
    assert set(begun(tmp_path).values()) == {1}


def test_failures_are_tried_again_when_asked(tmp_path):
    sweep(grid(seed=[13, 1]), tmp_path)
    (tmp_path / "trials/seed=13/mended").touch()
    found = sweep(grid(seed=[13, 1]), tmp_path, retry_failed=True)
    assert found["failed"] == []
    assert begun(tmp_path) == {"seed=13": 2, "seed=1": 1}


def test_a_killed_training_is_started_again(tmp_path):
    found = sweep(grid(seed=[66, 666]), tmp_path)
    assert begun(tmp_path) == {"seed=66": 2, "seed=666": 3}
    [failed] = found["failed"]
    assert failed["trial"] == "seed=666"
    assert failed["error"] == "(killed by SIGKILL), 3 times"


def test_another_grid_is_refused(tmp_path):
    sweep(grid(learning_rate=[0.1, 0.2]), tmp_path)
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(
        ValueError, match=r"holds another sweep:\n  learning_rate: 0.2 there, not here"
    ):
        sweep(grid(learning_rate=[0.1, 0.3]), tmp_path)
    with pytest.raises(ValueError, match=r"\n  steps: 1 there, 2 here\n"):
        sweep(Grid("test", {"steps": 2}, [{"learning_rate": [0.1, 0.2]}]), tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert begun(tmp_path) == {"lr=0.1": 1, "lr=0.2": 1}


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"holds something else \(thesis.tex\)"):
        sweep(grid(seed=[0]), tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "equipoise comparison"}')
    with pytest.raises(ValueError, match="holds an equipoise comparison"):
        sweep(grid(seed=[0]), tmp_path)


def test_two_sweeps_share_the_work(tmp_path):
    tables, seeds = [], list(range(100, 108))
    threads = [
        threading.Thread(target=lambda: tables.append(sweep(grid(seed=seeds), tmp_path)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(begun(tmp_path).values()) == {1}
    assert tables[0] == tables[1]
    assert tables[0]["rows"][0]["finished"] == 8


def test_trials_of_another_process_are_left_to_it(tmp_path):
    """And taken over when it has ended."""
    sweep(grid(seed=[1]), tmp_path)
    (tmp_path / "trials/seed=0").mkdir()
    lock = locks.take_lock(tmp_path / "trials/seed=0" / locks.RUN_LOCK)
    threading.Timer(2.0, lambda: os.close(lock)).start()
    started = time.monotonic()
    sweep(grid(seed=[0, 1]), tmp_path)
    assert time.monotonic() - started > 1.5
    assert begun(tmp_path) == {"seed=0": 1, "seed=1": 1}


def test_stopped_it_continues(tmp_path):
    def stop():
        while not begun(tmp_path).get("seed=60"):
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Stopped, match="continues where it was stopped"):
        sweep(grid(seed=[1, 60, 2]), tmp_path)
    assert (tmp_path / "trials/seed=60/stopped").exists()  # it had time for a checkpoint
    assert json.loads((tmp_path / "table.json").read_text())["unfinished"] == ["seed=60", "seed=2"]
    assert sweep(grid(seed=[1, 60, 2]), tmp_path)["unfinished"] == []
    assert begun(tmp_path) == {"seed=1": 1, "seed=60": 2, "seed=2": 1}


def test_a_killed_sweep_leaves_no_training_behind(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", SWEEP], cwd=tmp_path)
    folder = tmp_path / "out/trials/seed=60"
    wait_for(lambda: (folder / "begun").exists())
    time.sleep(0.5)
    assert locks.take_lock(folder / locks.RUN_LOCK) is None
    process.kill()
    process.wait()
    wait_for(lambda: (folder / "stopped").exists())
    wait_for(lambda: locks.take_lock(folder / locks.RUN_LOCK) is not None)


def test_a_killed_guard_takes_its_training_along(tmp_path):
    """And the trial is begun again, when that has left."""
    [trial] = grid(seed=[60]).trials(tmp_path)
    begun_here = attempt.begin_attempt(trial.job, job.AttemptOptions())
    wait_for(lambda: begun(tmp_path))
    time.sleep(0.3)
    begun_here.process.kill()
    assert begun_here.wait() == "finished"
    assert (trial.job.folder / "stopped").exists()
    assert begun(tmp_path) == {"seed=60": 2}


def wait_for(true, seconds=300):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_wrong_engines_are_reported(tmp_path):
    for options, message in (
        ({"engine": "spark"}, "no engine 'spark': there are local and ray"),
        ({"workers": 0}, "at least one trial at once"),
        ({"address": "auto"}, "goes with --engine ray"),
        ({"engine": "ray", "cpus_per_trial": 0}, "needs CPUs or GPUs"),
        ({"processes_per_trial": -1}, "at least one process"),
    ):
        with pytest.raises(ValueError, match=message):
            sweep(grid(seed=[0]), tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'equipoise\[ray\]'"):
        sweep(grid(seed=[0]), tmp_path, engine="ray")
