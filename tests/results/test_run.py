"""What a training leaves on disk, read back."""

import json

import pytest

from equipoise.results.comparison.rows_file import gather_rows
from equipoise.results.run import (
    RESULT_KEYS,
    is_finished,
    load_failure,
    load_measured,
    load_result,
    read_metrics,
    summarise_levels,
)
from equipoise.results.sweep import load_manifest, load_sweep


def test_levels_are_means_over_layers():
    layers = [{"imbalance": 0.5, "max_violation": 1.0}, {"imbalance": 0.25, "max_violation": 2.0}]
    assert summarise_levels(layers) == {
        "imbalance": 0.375,
        "max_violation": 1.5,
        "layers": {"imbalance": [0.5, 0.25], "max_violation": [1.0, 2.0]},
    }
    assert summarise_levels([])["imbalance"] == 0


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    rows = [{"kind": "train", "step": 1}, {"kind": "validation", "step": 1}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"kind": "tra')
    assert list(read_metrics(tmp_path / "metrics.jsonl")) == rows
    assert list(read_metrics(tmp_path / "none.jsonl")) == []


def test_a_run_that_has_not_finished(tmp_path):
    assert not is_finished(tmp_path)
    assert load_measured(tmp_path) == {}
    assert load_failure(tmp_path) is None
    (tmp_path / "failure.json").write_text('{"error": "no memory"}')
    assert load_failure(tmp_path) == "no memory"
    result = {**dict.fromkeys(RESULT_KEYS, 0), "validation_loss": 3.5}
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert is_finished(tmp_path)
    assert load_result(tmp_path)["validation_loss"] == 3.5


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"validation_loss": 3.5}', "[" * 100_000])
def test_a_damaged_result_is_named(tmp_path, content):
    (tmp_path / "result.json").write_text(content)
    (tmp_path / "failure.json").write_text(content)
    with pytest.raises(ValueError, match=r"result\.json is damaged: .*train again"):
        load_result(tmp_path)
    with pytest.raises(ValueError, match=r"failure\.json is damaged"):
        load_failure(tmp_path)
    with pytest.raises(ValueError, match=r"result\.json is damaged"):
        gather_rows(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"preset": 1, "steps": 1, "seeds": 1, "schemes": [{}], "runs": {}}'],
)
def test_a_damaged_manifest_is_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        gather_rows(tmp_path)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"best": [1], "rows": [{}], "failed": [], "unfinished": []}']
)
def test_a_damaged_table_of_a_sweep_is_named(tmp_path, content):
    (tmp_path / "table.json").write_text(content)
    with pytest.raises(ValueError, match=r"table\.json is damaged"):
        load_sweep(tmp_path)
