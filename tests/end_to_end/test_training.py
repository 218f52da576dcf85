"""Training and planning as a person meets them: in another process, from the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from equipoise.cli import main

SIZE = (
    "--preset tiny --validation-sequences 16 --model.vocab-size 512 --model.sequence-length 64 "
    "--model.hidden-size 32 "
    "--model.moe-layers 2 --model.expert-size 32"
)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with text to read, which every Python brings along, and a cache."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "manual.txt").write_text("\n".join(topics.values()))
    return folder


@pytest.fixture
def command(workplace, monkeypatch, capsys):
    """The command in this process, which has torch already: (exit code, output, errors)."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(workplace / "cache"))

    def run(words):
        try:
            code = main(words.split())
        except SystemExit as stopped:
            code = stopped.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def python(workplace):
    def run(words):
        return subprocess.run(
            [sys.executable, "-m", *words.split()],
            cwd=workplace,
            env={**os.environ, "EQUIPOISE_CACHE": str(workplace / "cache"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    return run


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == "train"]


def mean(values):
    return sum(values) / len(values)


def test_loss_and_imbalance_fall(python, workplace):
    flags = (
        "--data manual.txt --balancer deepseek --update-rate 1e-2 --steps 100 "
        "--checkpoint-every 50 --out runs/a"
    )
    answer = python(f"equipoise train {SIZE} {flags}")
    assert answer.returncode == 0, answer.stderr
    # not a terminal: no bar, but lines (one every 30 s too, on a slow machine)
    begins, *_, evaluation = answer.stderr.splitlines()
    assert begins == "training begins: 100 steps"
    assert evaluation.startswith("step 100: validation loss ")
    assert "runs/a: 100 steps" in answer.stdout
    steps = rows(workplace / "runs/a")
    assert mean([row["loss"] for row in steps[-10:]]) < steps[0]["loss"] - 0.8
    worst = max(mean([row["imbalance"] for row in steps[n : n + 10]]) for n in range(0, 60, 10))
    assert mean([row["imbalance"] for row in steps[-10:]]) < 0.7 * worst
    assert json.loads((workplace / "runs/a/result.json").read_text())["steps"] == 100


def test_a_run_can_be_repeated_from_its_config(command):
    first = command(f"train {SIZE} --data manual.txt --steps 3 --out runs/b --json")
    second = command("train --config runs/b/config.yaml --out runs/c --json --measure")
    one, other = json.loads(first[1]), json.loads(second[1])
    assert one["validation_loss"] == other["validation_loss"]
    assert json.loads((Path("runs/c") / "measured.json").read_text())["given_up"] >= 0
    assert not (Path("runs/b") / "measured.json").exists()
    again = command("train --config runs/b/config.yaml --resume --json")
    assert json.loads(again[1]) == one


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--preset tinny", "did you mean 'tiny'"),
        ("--balancer deepsek", "did you mean 'deepseek'"),
        ("--data nowhere", "no data 'nowhere'"),
        ("--config bad.yaml", "no setting 'learning_rat' (did you mean 'learning_rate'"),
        ("--config missing.yaml", "missing.yaml"),
        ("--model.top-k 99", "top_k = 99 of num_experts = 16 is impossible"),
        ("--steps many", "--steps"),
        ("--learning-rat 1", "--learning-rate"),
    ],
)
def test_mistakes_are_explained(command, workplace, flags, message):
    (workplace / "bad.yaml").write_text("learning_rat: 1\n")
    code, _, errors = command(f"train --out runs/never {flags}")
    assert code == 2
    assert message in errors
    assert not (workplace / "runs/never").exists()


def test_help_has_examples(command):
    code, output, _ = command("train --help")
    assert code == 0
    assert "equipoise train --preset tiny --balancer deepseek" in output


@pytest.mark.slow
def test_torchrun_trains_on_two_ranks(python):
    flags = "--data manual.txt --steps 4 --parallel fsdp --out runs/ranks --json"
    answer = python(
        f"torch.distributed.run --standalone --nproc-per-node 2 -m equipoise train {SIZE} {flags}"
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["ranks"] == 2


def test_plans_are_printed(command):
    code, output, _ = command("plan deepseekmoe-1b --gpus 8")
    assert code == 0
    assert "1.09 billion" in output
    assert "Assumed:" in output
    figures = json.loads(command("plan deepseekmoe-1b --gpus 8 --steps 10 --json")[1])
    assert figures["steps"] == 10
    assert len(figures["assumptions"]) > 3
