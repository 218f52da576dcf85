"""What --json prints is strict JSON: no NaN, no Infinity. And what `solve` refuses early."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import equipoise
from equipoise.cli import main


def refuse_constant(word):
    raise AssertionError(f"{word} is not JSON")


def strict(text):
    return json.loads(text, parse_constant=refuse_constant)


@pytest.fixture
def scores_file(tmp_path):
    np.save(tmp_path / "scores.npy", np.random.default_rng(0).random((400, 8), dtype=np.float32))
    return tmp_path / "scores.npy"


def test_every_verb_uses_the_one_writer():
    folder = Path(equipoise.cli.__file__).parent
    assert [path.name for path in folder.glob("*.py") if "json.dump" in path.read_text()] == []


def test_demo_where_every_expert_takes_every_token(capsys):
    small = ["--experts", "4", "--tokens", "64", "--steps", "6", "--balancers", "deepseek"]
    assert main(["demo", *small, "--top-k", "4", "--json"]) == 0
    [row] = strict(capsys.readouterr().out)
    assert row["final_imbalance"] == 0
    assert row["over_floor"] is None


def test_place_with_a_solver_that_prints_by_itself(tmp_path, capfd, monkeypatch):
    np.save(tmp_path / "loads.npy", np.ones((2, 1, 4), int))
    real = equipoise.place

    def place(*loads, **options):
        os.write(1, b"HighsMipSolverData::transformNewIntegerFeasibleSolution\n")
        return real(*loads, **options)

    monkeypatch.setattr(equipoise, "place", place)
    assert main(["place", str(tmp_path / "loads.npy"), "--devices", "2", "--json"]) == 0
    assert strict(capfd.readouterr().out)["devices"] == 2


def test_plan(capsys):
    assert main(["plan", "deepseekmoe-1b", "--gpus", "8", "--json"]) == 0
    assert strict(capsys.readouterr().out)


def test_plan_on_a_cluster(capsys):
    assert main(["plan", "deepseek-v3", "--cluster", "h800-64", "--price", "2", "--json"]) == 0
    found = strict(capsys.readouterr().out)
    assert [row["imbalance"] for row in found["imbalances"]] == [0, 0.01, 0.03, 0.1, 0.3, 1]
    assert found["imbalances"][1]["lost_money"] == 2 * found["imbalances"][1]["lost_device_hours"]
    assert len(found["assumptions"]) == 4


def test_simulate_where_a_rule_diverges(capsys):
    words = ["simulate", "tiny", "h100-8", "--layers", "1", "--steps", "8", "--pool", "64"]
    more = ["--balancers", "none", "proportional", "--rates", "1e38", "--json"]
    assert main([*words, *more]) == 0
    found = strict(capsys.readouterr().out)
    none, lost = found["balancers"]
    assert (none["balancer"], none["diverged_after"]) == ("none", None)
    assert lost["lost_device_hours"] is None
    assert lost["diverged_after"] > 0


@pytest.mark.parametrize("size", [0.0, 1e30])
def test_solve_beside_any_shift(scores_file, tmp_path, capsys, size):
    np.save(tmp_path / "shift.npy", np.full(8, size))
    shift = ["--shift", str(tmp_path / "shift.npy")]
    assert main(["solve", str(scores_file), "--top-k", "2", *shift, "--json"]) == 0
    assert strict(capsys.readouterr().out)["loads"] == [100] * 8


def test_a_shift_that_overflows_is_refused(scores_file, tmp_path, capsys):
    np.save(tmp_path / "shift.npy", np.full(8, 1e308))
    shift = ["--shift", str(tmp_path / "shift.npy")]
    assert main(["solve", str(scores_file), "--top-k", "2", *shift, "--json"]) == 2
    assert "the shift of expert 0 is 1e+308" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.txt"], "x.txt: results are written as .npz or .safetensors"),
        (["--out", "nowhere/x.npz"], "there is no folder nowhere"),
        (["--name", "layer3"], "holds one array, which has no name: leave the name 'layer3' out"),
    ],
)
def test_solve_refuses_before_it_solves(scores_file, capsys, monkeypatch, arguments, message):
    def solve(*_, **__):
        raise AssertionError("it solves")

    monkeypatch.setattr(equipoise, "solve", solve)
    assert main(["solve", str(scores_file), "--top-k", "2", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_memory_is_said_without_a_traceback(scores_file, capsys, monkeypatch):
    def solve(*_, **__):
        raise MemoryError

    monkeypatch.setattr(equipoise, "solve", solve)
    assert main(["solve", str(scores_file), "--top-k", "2"]) == 2
    assert "there is not enough memory" in capsys.readouterr().err
