"""Workers: they leave with their parent, a killed one is named, and a cell that diverges costs no
other.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import equipoise
from equipoise.arena import cells as cells_module
from equipoise.arena.contest import contest, plan_cells
from equipoise.cli import main
from equipoise.report.arena.answer import arena_answer
from equipoise.results.arena import load_arena
from tests.arena.test_contest import SMALL

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def start_arena(out, *names):
    command = [sys.executable, "-m", "equipoise", "arena", *names, "--workers", "2"]
    return subprocess.Popen(
        [*command, "--tokens", "4096", "--steps", "100000", "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers_of(process):
    """Pids of the pool's processes, without the resource tracker."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [
        int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_leave_with_a_killed_parent(tmp_path, number):
    arena = start_arena(tmp_path, "drift", "topics")
    try:
        wait_for(lambda: len(workers_of(arena)) == 2)
        workers = workers_of(arena)
        arena.send_signal(number)
        arena.wait(60)
        wait_for(lambda: not any(is_running(pid) for pid in workers), 30)
    finally:
        arena.kill()
        for pid in workers:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


class Deadly(type(SMALL)):
    """A stream whose batches kill the process that makes them, as the kernel does when memory is
    short.
    """

    def batch(self, step):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_a_killed_worker_is_named_and_finished_cells_are_kept(tmp_path):
    deadly = Deadly(**{**dataclasses.asdict(SMALL), "name": "deadly"})
    planned = plan_cells([SMALL, deadly], ["none"], devices=4)
    contest(planned[:1], out=tmp_path, workers=1)
    with pytest.raises(
        ChildProcessError, match="code -9 while it ran the reference of deadly"
    ) as e:
        contest(planned, out=tmp_path, workers=2)
    assert f"1 of 2 cells are in {tmp_path}, the same command continues" in str(e.value)


@pytest.fixture
def diverging(monkeypatch):
    """deepseek at the rate 0.01 makes its shift NaN at the fourth update."""
    learn = cells_module._CellRun._learn

    def spoil(self, batch, routing):
        learn(self, batch, routing)
        if self.cell.rate == 0.01 and len(self.loads) == 4:
            self.rule.shift.fill_(float("nan"))

    monkeypatch.setattr(cells_module._CellRun, "_learn", spoil)


def test_a_diverging_cell_is_recorded_and_the_others_continue(tmp_path, diverging):
    diverged = []
    planned = plan_cells([SMALL], ["deepseek", "quantile"], [0.001, 0.01], devices=4)
    rows = contest(planned, out=tmp_path, workers=1, on_diverged=diverged.append)
    assert all(each.imbalance for each in rows)
    assert {(each.balancer, each.rate) for each in diverged} == {
        ("deepseek", 0.01),
        ("quantile", 0.01),
    }
    assert {each.diverged_after for each in diverged} == {4}
    found = load_arena(tmp_path)
    assert (found.missing, list(found.diverged)) == (0, diverged)
    assert "deepseek at 0.01 on small" in arena_answer(found)
    # what diverged is not run again
    again = []
    assert contest(planned, out=tmp_path, workers=1, on_diverged=again.append) == rows
    assert again == diverged


def test_a_diverging_cell_is_shown(capsys, diverging):
    sizes = ["drift", "--tokens", "512", "--steps", "24", "--workers", "1"]
    words = [*sizes, "--rates", "0.001", "0.01", "--balancers", "deepseek", "curvature"]
    assert main(["arena", *words, "--json"]) == 0
    out, error = capsys.readouterr()
    assert "deepseek at rate 0.01 on drift diverged" in error
    lost = [row for row in json.loads(out) if row["steady_imbalance"] is None]
    assert [(row["balancer"], row["rate"], row["diverged_after"]) for row in lost] == [
        ("deepseek", 0.01, 4)
    ]
    assert main(["tune", *words]) == 0
    assert "Left out: deepseek at rate 0.01 on drift diverged" in capsys.readouterr().out


def test_too_few_rules_left_to_compare_are_reported(diverging):
    with pytest.raises(ValueError, match=r"deepseek at rate 0\.01 on drift diverged"):
        equipoise.tune(
            "drift", balancers=["deepseek", "curvature"], rates=[0.01], tokens=256, steps=24,
            workers=1,
        )  # fmt: skip


def temporary_folders(folder):
    return list(folder.glob("equipoise-arena-*"))


@linux
@pytest.mark.parametrize(
    ("workers", "number"), [(1, signal.SIGTERM), (2, signal.SIGTERM), (2, signal.SIGKILL)]
)
def test_a_killed_arena_leaves_no_temporary_folder(tmp_path, workers, number):
    command = [sys.executable, "-m", "equipoise", "arena", "drift", "--workers", str(workers)]
    arena = subprocess.Popen(
        [*command, "--tokens", "4096", "--steps", "100000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        wait_for(lambda: temporary_folders(tmp_path))
        # a worker that has imported torch has run its initializer
        wait_for(lambda: workers == 1 or any(map(has_torch, workers_of(arena))))
        time.sleep(1)
        arena.send_signal(number)
        arena.wait(60)
        wait_for(lambda: not temporary_folders(tmp_path), 30)
    finally:
        arena.kill()


def has_torch(pid):
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("workers", [0, -2])
def test_no_workers_are_refused(workers):
    with pytest.raises(ValueError, match=f"workers must be at least 1, not {workers}"):
        contest(plan_cells([SMALL], ["none"]), workers=workers)
