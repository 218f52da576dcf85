"""The command as a person meets it: in another process."""

import json
import subprocess
import sys

import numpy as np
import pytest


def equipoise(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "equipoise", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


SMALL = ("--steps", "6", "--tokens", "256", "--experts", "8", "--top-k", "2")


def test_demo_prints_a_table():
    answer = equipoise("demo", *SMALL, "--balancers", "none", "quantile")
    assert answer.returncode == 0, answer.stderr
    assert "quantile" in answer.stdout
    assert "How uneven the experts' loads are" in answer.stdout


def test_demo_prints_json():
    answer = equipoise("demo", *SMALL, "--json")
    rows = {row["balancer"]: row for row in json.loads(answer.stdout)}
    assert rows["quantile"]["final_imbalance"] < rows["none"]["final_imbalance"]
    assert rows["none"]["steps_to_floor"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--balancers", "quantil"), "did you mean 'quantile'"),
        (("--top-k", "9"), "top_k = 9 of 8 experts is impossible"),
        (("--steps", "0"), "steps must be at least 1"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    answer = equipoise("demo", *SMALL, *arguments)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


def test_help_has_examples():
    assert "equipoise demo --drift" in equipoise("demo", "--help").stdout


@pytest.fixture
def scores_file(tmp_path):
    np.save(tmp_path / "scores.npy", np.random.default_rng(0).random((1000, 8), dtype=np.float32))
    return tmp_path / "scores.npy"


def test_solve_prints_a_table(scores_file):
    answer = equipoise("solve", str(scores_file), "--top-k", "2")
    assert answer.returncode == 0, answer.stderr
    assert "1,000 tokens, 8 experts, top-2" in answer.stdout
    assert "250" in answer.stdout


def test_solve_writes_and_prints_json(scores_file):
    folder = scores_file.parent
    np.save(folder / "shift.npy", np.zeros(8))
    answer = equipoise(
        "solve", str(scores_file), "--top-k", "2", "--shift", str(folder / "shift.npy"), "--json",
        "--out", str(folder / "optimum.npz"),
    )  # fmt: skip
    figures = json.loads(answer.stdout)
    assert figures["loads"] == [250] * 8
    assert abs(figures["gap"]) <= figures["rounding_bound"]
    assert figures["given_shift"]["imbalance"] > 0
    assert np.load(folder / "optimum.npz")["experts"].shape == (1000, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--top-k", "9"), "top_k = 9"), (("--top-k", "2", "--target", "missing.npy"), "missing.npy")],
)
def test_solve_says_what_is_wrong(scores_file, arguments, message):
    answer = equipoise("solve", str(scores_file), *arguments)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr
