"""The page's text: complete, computed, escaped, the same for the same folder."""

import csv
import json
import re

import pytest

from equipoise.report import as_markdown, report
from equipoise.results.comparison.rows import read_comparison
from equipoise.results.comparison.rows_file import write_rows
from tests.results.comparison.made import comparison


def test_the_page_needs_nothing_else(results):
    text = (results / "report.html").read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert len(text) < 3_000_000
    assert text == report(results, results / "again.html").read_text()


def test_all_figures_have_their_data(results):
    for name in ("imbalance", "loss", "scores", "shifts", "loads"):
        rows = list(csv.DictReader((results / "figures" / f"{name}.csv").open()))
        assert {each["scheme"] for each in rows} >= {"no balancing", "u/√n"}
    shares = [
        float(each["share"]) for each in csv.DictReader((results / "figures" / "scores.csv").open())
    ]
    assert sum(shares) == pytest.approx(4 * 4, abs=1e-2)  # four schemes at four steps, each a whole


def test_the_kept_file_gives_the_same_page(results, tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_bytes((results / "rows.json").read_bytes())
    assert report(kept) == tmp_path / "kept.html"
    assert (tmp_path / "kept.html").read_text() == report(results).read_text()
    for name in ("results", "differences", "training", "loads"):
        assert (tmp_path / f"figures/{name}.csv").read_text() == (
            results / f"figures/{name}.csv"
        ).read_text()


def test_differences_have_intervals_and_marks(tmp_path):
    text = report(write_rows(comparison(), tmp_path / "made.json")).read_text()
    table = re.search(r"<table id=differences>.*?</table>", text)[0]
    assert "less u/|L-A| (DeepSeek)" in table
    assert re.search(
        r"<td class=bad>\+0\.\d{3}<small>± 0\.\d{3}\*</small></td>", table
    )  # no balancing is less even
    assert "(chance 0.021)" in re.search(r"<table id=results>.*?</table>", text)[0]
    assert "Bonferroni" in text


def test_markdown_has_both_tables(results, tmp_path):
    text = as_markdown(write_rows(comparison(), tmp_path / "made.json"))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 * 2 + 3 + 2
    assert {line.replace("\\|", "").count("|") for line in lines} == {11}
    assert as_markdown(results) == as_markdown(results / "rows.json")


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
        read_comparison(tmp_path)
