"""A measure of loads is listed once and has one column: logs, result, table and page then show it.

The steps are those of docs/extending.md, taken by patching instead of editing.
"""

import json
from pathlib import Path

import pytest

from equipoise.report.comparison import page
from equipoise.report.comparison.page import report_comparison
from equipoise.results import run
from equipoise.results.columns import COMPARISON_KEYS, MORE_COLUMNS, Column
from equipoise.results.comparison import rows
from equipoise.training import train
from tests.training.conftest import micro, own_cache, texts  # noqa: F401  fixtures of the trainings

CV = Column("cv", "variation", "cv", "standard deviation of the loads over their mean", 3)


def test_a_new_level_appears_everywhere(micro, monkeypatch):  # noqa: F811
    monkeypatch.setattr(run, "LOGGED_LEVELS", (*run.LOGGED_LEVELS, CV.key))
    monkeypatch.setattr(page, "MORE_COLUMNS", (*MORE_COLUMNS, CV))
    monkeypatch.setattr(rows, "COMPARISON_KEYS", (*COMPARISON_KEYS, CV.key))
    config = micro()
    train(config)
    folder = Path(config.out)
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(row["cv"] == pytest.approx(sum(row["layers"]["cv"]) / 2) for row in logged)
    result = json.loads((folder / "result.json").read_text())
    assert result["cv"] == logged[-1]["cv"] > 0
    text = report_comparison(folder).read_text()
    assert ">variation</th>" in text
    assert f">{result['cv']:.3f}</td>" in text
