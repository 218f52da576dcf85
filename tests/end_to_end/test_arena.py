"""The arena as a person meets it: from the command line."""

import json
import subprocess
import sys

import pytest

from equipoise.cli import main

KEYS = [
    "stream", "balancer", "rate", "steady_imbalance", "over_floor", "steps_to_floor",
    "affinity_kept", "switched", "idle_share", "regret", "dynamic_regret", "path_length",
    "dropped_share", "sequence_violation",
]  # fmt: skip
SMALL = ["--steps", "24", "--tokens", "256", "--workers", "1"]


def test_cells_as_json(capsys):
    code = main(
        [
            "arena",
            "drift",
            "padding",
            "--balancers",
            "deepseek",
            "curvature",
            "--rates",
            "1e-3",
            "1e-2",
            *SMALL,
            "--json",
        ]
    )
    rows = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [list(row) for row in rows] == [KEYS] * 6
    assert [(row["balancer"], row["rate"]) for row in rows[:3]] == [
        ("deepseek", 1e-3),
        ("deepseek", 1e-2),
        ("curvature", None),
    ]
    assert {row["stream"] for row in rows} == {"drift", "padding"}


def test_a_table_for_every_stream(capsys):
    assert main(["arena", "uniform", "unequal", "--balancers", "none", "quantile", *SMALL]) == 0
    text = capsys.readouterr().out
    assert "uniform: floor" in text
    assert "unequal: floor" in text
    assert "the router does not react" in " ".join(text.split())
    assert "…" not in text  # eighty columns are enough for every figure


def test_a_page_is_written(tmp_path, capsys):
    page = tmp_path / "new" / "page.html"
    words = ["arena", "uniform", "--balancers", "none", "quantile", *SMALL, "--json"]
    assert main([*words, "--page", str(page)]) == 0
    told = capsys.readouterr()
    assert len(json.loads(told.out)) == 4
    assert f"the page: {page}" in told.err
    assert "On uniform, quantile at rate" in page.read_text()
    assert main([*words, "--page", str(tmp_path)]) == 2
    assert "is a folder: --page takes the name of a file" in capsys.readouterr().err


def test_a_contest_is_gone_on_with(tmp_path, capsys):
    words = [
        "arena",
        "softmax",
        "--balancers",
        "quantile",
        *SMALL,
        "--json",
        "--out",
        str(tmp_path / "cells"),
    ]
    assert main(words) == 0
    first = capsys.readouterr().out
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert len(files) == 5  # three rates, a reference, and a list of what was asked for
    assert main(words) == 0
    assert capsys.readouterr().out == first
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}


def test_tune_gives_a_paragraph(capsys):
    assert main(["tune", "drift", "--balancers", "deepseek", "quantile", "none", *SMALL]) == 0
    text = capsys.readouterr().out
    assert "For drift: quantile at rate" in text
    assert "confirm by a short training" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["arena", "drft"], "did you mean 'drift'"),
        (["arena", "drift", "--balancers", "curvatur"], "did you mean 'curvature'"),
        (["arena", "drift", "--steps", "0"], "steps must be at least 1"),
        (["record", "nowhere", "--out", "x"], "not the folder of a training"),
    ],
)
def test_mistakes_are_explained(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_help_has_examples():
    for verb in ("arena", "tune", "record"):
        answer = subprocess.run(
            [sys.executable, "-m", "equipoise", verb, "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "examples:" in answer.stdout
