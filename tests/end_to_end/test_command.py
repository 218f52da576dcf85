"""The command as a person meets it: in another process."""

import json
import subprocess
import sys

import pytest


def equipoise(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "equipoise", *arguments], capture_output=True, text=True, timeout=120, check=False
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
