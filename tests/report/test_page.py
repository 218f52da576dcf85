"""The page's text: complete, computed, escaped, the same for the same folder."""

import csv
import json
import re

import pytest

from equipoise.report import report
from equipoise.report.answer import answer
from equipoise.report.read import Results, Series, read_results


def row(label, loss, imbalance):
    return {"label": label, "validation_loss": loss, "imbalance": imbalance, "seeds": 1}


def test_the_answer_follows_the_data():
    series = [Series(row("one", 3.0, 0.5), []), Series(row("two", 3.1, 0.1), []), Series(row("three", 3.2, 0.9), [])]
    told = answer(Results("x", "tiny", 300, series))
    assert "two leaves the loads most even (10.0%" in told
    assert "one has the lowest validation loss (3.0000; all lie within 0.2000)" in told
    assert "One seed" in told


def test_the_page_needs_nothing_else(results):
    text = (results / "report.html").read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert len(text) < 3_000_000
    assert text == report(results, results / "again.html").read_text()


def test_all_figures_have_their_data(results):
    for name in ("imbalance", "loss", "scores", "shifts", "loads"):
        rows = list(csv.DictReader((results / "figures" / f"{name}.csv").open()))
        assert {each["scheme"] for each in rows} >= {"no balancing", "u/√n"}
    shares = [float(each["share"]) for each in csv.DictReader((results / "figures" / "scores.csv").open())]
    assert sum(shares) == pytest.approx(4 * 4, abs=1e-2)  # four schemes at four steps, each a whole


def test_a_single_training_has_a_page(results, tmp_path):
    path = report(results / "runs" / "deepseek-0", tmp_path / "one.html")
    assert "deepseek has a validation loss of" in path.read_text()


def test_text_is_escaped(results, tmp_path):
    bad = tmp_path / "<img src=x onerror=alert(1)>"
    bad.mkdir()
    for name in ("manifest.json", "table.json"):
        content = json.loads((results / name).read_text())
        for each in content["schemes"] if name == "manifest.json" else content:
            each["label"] = "<script>alert(1)</script>{{data}}"
        (bad / name).write_text(json.dumps(content))
    text = report(bad).read_text()
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{data}}" in text


def test_folders_without_results_are_told(tmp_path):
    with pytest.raises(ValueError, match="holds no results"):
        read_results(tmp_path)
