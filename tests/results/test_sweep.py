"""table.json of a sweep: read as it was written, also by earlier versions."""

import json
from pathlib import Path

import pytest

from equipoise.results.sweep import SettingRow, SweepTable, is_sweep, load_search, load_sweep

DOCS = Path(__file__).parents[2] / "docs" / "results"
OLD = Path(__file__).parents[1] / "end_to_end" / "files_of_0_1"


def test_a_table_is_read_as_it_was_written():
    content = json.loads((OLD / "sweep" / "table.json").read_text())
    assert SweepTable.from_json(content).to_json() == content


def test_a_table_without_names_is_read():
    rows = load_search(DOCS / "paper-tiny-search.json")
    assert rows[0].names == []
    assert rows[0].loss == pytest.approx(3.68, abs=0.02)
    assert len(rows[0].figures["validation_loss"].values) == rows[0].trials == 2


def test_a_sweep_is_known_by_its_manifest():
    assert is_sweep(OLD / "sweep")
    assert not is_sweep(OLD / "comparison")
    assert load_sweep(OLD / "sweep").common["steps"] > 0


def test_settings_in_words():
    settings = {"balancer": "aux", "update_rate": 0.1, "learning_rate": 1e-3, "model.top_k": 2}
    row = SettingRow("aux", "auxiliary loss", settings, 1, 1)
    assert row.described_settings() == "u 0.1, learning rate 0.001, model.top_k 2"
