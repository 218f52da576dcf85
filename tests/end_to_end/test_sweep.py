"""The sweep as a person meets it: real trainings, two commands at once, a failure, a page."""

import json
import os
import subprocess
import sys
from pydoc_data.topics import topics

import pytest

GRID = """
base:
  {data: manual.txt, steps: 2, batch_size: 2, validation_sequences: 4,
   model: {hidden_size: 32, vocab_size: 300}}
axes:
  - {balancer: [deepseek], update_rate: [1e-3, 1]}
  - {balancer: [none], learning_rate: [1e30]}
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "manual.txt").write_text("\n".join(topics.values()))
    (tmp_path / "grid.yaml").write_text(GRID)
    environment = {
        "EQUIPOISE_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "80",
    }

    def run(*words):
        return subprocess.Popen(
            [sys.executable, "-m", "equipoise", "sweep", *words],
            cwd=tmp_path,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


@pytest.mark.slow
def test_two_commands_share_a_grid(start, tmp_path):
    """The trial that fails is told, and does not stop the others."""
    commands = [start("grid.yaml", "--out", "found") for _ in range(2)]
    told = [command.communicate(timeout=300) for command in commands]
    assert [command.returncode for command in commands] == [1, 1], told
    for out, errors in told:
        assert "FAILED none_lr=1e+30" in out
        assert "trials that failed: 1" in errors
        assert "…" not in out  # nothing is cut off in a narrow terminal
    assert (tmp_path / "found/report.html").exists()
    for trial in ("deepseek_u=0.001", "deepseek_u=1"):
        lines = (tmp_path / "found/trials" / trial / "metrics.jsonl").read_text().splitlines()
        assert (
            sum(json.loads(line)["kind"] == "train" for line in lines) == 2
        )  # one of the two made it
    again = start("grid.yaml", "--out", "found", "--json")
    found = json.loads(again.communicate(timeout=300)[0])
    assert again.returncode == 1
    assert [row["scheme"] for row in found["best"]] == ["deepseek"]


def test_mistakes_have_a_line_and_leave_nothing(start, tmp_path):
    (tmp_path / "grid.yaml").write_text("axes: {learning_rat: [1e-3]}")
    command = start("grid.yaml", "--out", "found")
    errors = command.communicate(timeout=300)[1]
    assert command.returncode == 2
    assert errors.startswith(
        "equipoise: no setting 'learning_rat' (did you mean 'learning_rate' or "
    )
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "found").exists()


def test_the_papers_grid_is_there(start):
    out, _ = start("paper", "--dry-run").communicate(timeout=300)
    assert out.splitlines()[0] == "deepseek_u=0.0001_lr=1e-05_wd=0.01"
    assert out.splitlines()[-1] == "216 trainings"
