"""What a training leaves on disk, read back."""

import json

from equipoise.results.run import (
    is_finished,
    load_failure,
    load_measured,
    load_result,
    read_metrics,
    summarise_levels,
)


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
    (tmp_path / "result.json").write_text('{"validation_loss": 3.5}')
    assert is_finished(tmp_path)
    assert load_result(tmp_path)["validation_loss"] == 3.5
