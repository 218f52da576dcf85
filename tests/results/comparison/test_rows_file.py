"""One file that keeps a comparison: small, and refused by name when it is not what it should be."""

import copy
import json

import pytest

from equipoise.results.columns import COMPARISON_COLUMNS
from equipoise.results.comparison.condense import condense_curves
from equipoise.results.comparison.rows import comparison_results
from equipoise.results.comparison.rows_file import read_rows, write_rows
from tests.results.comparison.made import comparison


def test_what_was_written_is_read(tmp_path):
    made = comparison()
    assert read_rows(write_rows(made, tmp_path / "rows.json")) == made


def without(*path):
    def change(kept):
        *first, last = path
        for key in first:
            kept = kept[key]
        del kept[last]

    return change


@pytest.mark.parametrize(
    "change",
    [
        without("manifest"),
        without("title"),
        without("runs"),
        without("manifest", "steps"),
        without("manifest", "schemes", 0, "paper"),
        without("manifest", "schemes", 0),
        without("runs", 0, "result"),
        without("runs", 0, "seed"),
        without("runs", 0, "result", "imbalance"),
        without("runs", 3, "training", "loss"),
        without("runs", 3, "training", "loss", 0),
        without("runs", 3, "validation", 0, "step"),
        lambda kept: kept.update(runs=7),
        lambda kept: kept["runs"].append("run"),
    ],
)
def test_damage_is_told_by_name(tmp_path, change):
    made = copy.deepcopy(comparison())
    change(made)
    with pytest.raises(ValueError, match=r"rows\.json is damaged"):
        read_rows(write_rows(made, tmp_path / "rows.json"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"format": "equipoise comp', "is damaged: it is not JSON"),
        ("[1, 2]", "its format is None"),
        ('{"format": "equipoise sweep"}', "its format is 'equipoise sweep'"),
        (json.dumps({**comparison(), "version": 9}), "has version 9"),
    ],
)
def test_other_files_are_refused(tmp_path, text, told):
    (tmp_path / "some.json").write_text(text)
    with pytest.raises(ValueError, match=rf"some\.json.*{told}"):
        read_rows(tmp_path / "some.json")


def test_long_curves_become_short_and_keep_their_mean():
    rows = [
        {"step": n + 1, "imbalance": float(n % 7), "loss": 1.0, "idle_share": 0.5}
        for n in range(9000)
    ]
    made = condense_curves(rows)
    assert len(made["step"]) == 300
    assert made["step"][-1] == 9000
    assert sum(made["imbalance"]) / 300 == pytest.approx(
        sum(row["imbalance"] for row in rows) / 9000, rel=1e-3
    )


def test_missing_and_infinite_values_are_gaps():
    made = condense_curves(
        [{"step": 1, "imbalance": 1.0, "loss": float("nan"), "idle_share": None}, {"step": 2}]
    )
    assert (made["imbalance"], made["loss"], made["idle_share"]) == (
        [1.0, None],
        [None, None],
        [None, None],
    )


def test_columns_nobody_has_show_a_dash():
    assert {column.cell({}, spread=True) for column in COMPARISON_COLUMNS} == {"-"}
    kept = comparison(seeds=1, schemes=("deepseek",))
    del kept["runs"][0]["result"], kept["runs"][0]["measured"]
    kept["runs"][0]["error"] = "no memory"
    [row] = comparison_results(kept).rows
    assert {column.cell(row.figures, spread=True) for column in COMPARISON_COLUMNS} == {"-"}
