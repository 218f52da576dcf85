"""The page's text: complete, computed, escaped, the same for the same folder."""

import csv
import json
import re

import pytest

from equipoise.report import as_markdown, report
from equipoise.report.comparison.verdicts import verdict_counts
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
        assert {each["scheme"] for each in rows} >= {"u/√n", "quantile"}
        # a scheme without a shift has no histogram of it
        assert ("no balancing" in {each["scheme"] for each in rows}) == (name != "shifts")
    shares = [
        float(each["share"]) for each in csv.DictReader((results / "figures" / "scores.csv").open())
    ]
    # four schemes at four steps, each a whole but for the tail that is not drawn
    assert 4 * 4 * 0.998 - 1e-2 <= sum(shares) <= 4 * 4 + 1e-2


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
        r"<td class=bad data-value=\"0.\d+\">\+0\.\d{3}<small>± 0\.\d{3}\*</small></td>", table
    )  # no balancing is less even
    assert "(chance 0.021)" in re.search(r"<table id=results>.*?</table>", text)[0]
    assert "Bonferroni" in text


def test_the_best_is_bold_only_where_it_is_significant(tmp_path):
    text = report(write_rows(comparison(), tmp_path / "made.json")).read_text()
    table = re.search(r"<table id=results>.*?</table>", text)[0]
    # losses, and curvature's imbalance, differ from deepseek's by noise alone
    assert "class=best" not in table
    even = comparison()
    for run in even["runs"]:
        if run["scheme"] == "curvature":
            run["result"]["imbalance"] = 0.1 + run["seed"] / 1000
    text = report(write_rows(even, tmp_path / "even.json")).read_text()
    bold = re.findall(r"<td class=best[^>]*>(.*?)</td>", text)
    assert len(bold) == 1
    assert bold[0].startswith("0.102 (chance")


def test_tiles_tell_ranges_and_no_winner(tmp_path):
    text = report(write_rows(comparison(), tmp_path / "made.json")).read_text()
    tiles = re.findall(r"<section class=tile><h2>(.*?)</h2><strong>(.*?)</strong>", text)
    assert [name for name, _ in tiles] == [
        "Imbalance, in multiples of chance",
        "Worst layer",
        "Idle device hours",
        "Loss against u/|L-A| (DeepSeek)",
    ]
    assert re.fullmatch(r"13\.\d to 13\.\dx", tiles[0][1])
    assert tiles[3][1] == "no difference known"
    one = report(write_rows(comparison(seeds=1), tmp_path / "one.json")).read_text()
    assert "one seed has no interval" in one


def test_idle_time_has_a_price(tmp_path):
    rows = write_rows(comparison(), tmp_path / "made.json")
    assert "in money" not in report(rows).read_text()
    low, high = re.search(
        r"<b>(\d+) to (\d+)</b> in money, at 2 a device hour", report(rows, price=2).read_text()
    ).groups()
    hours = re.search(r"<strong>(\d+) to (\d+) h</strong>", report(rows).read_text()).groups()
    assert [int(low), int(high)] == pytest.approx([2 * int(each) for each in hours], abs=1)
    lines = re.findall(r"(\d+) ± \d+ h \(([\d,]+) in money\)", report(rows, price=2).read_text())
    # three schemes, and no balancing once more beside the range
    assert len(lines) == 4
    assert all(abs(int(money.replace(",", "")) - 2 * int(each)) <= 1 for each, money in lines)
    for price in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="the price of a device hour"):
            report(rows, price=price)


def test_chips_tell_how_to_repeat_it(results):
    text = (results / "report.html").read_text()
    assert "--seeds 1 --schemes none deepseek inverse_sqrt quantile</li>" in text
    assert re.search(r"<span>finished</span> \d{4}-\d\d-\d\d", text)


def test_verdicts_are_counted_and_grouped_by_reason(results):
    text = (results / "report.html").read_text()
    found = re.findall(r"<summary><i class=glyph.*?</i> (.*?)</summary>", text)
    assert len(found) == 4
    for line in found:
        assert re.search(r": (\d+ refuted, )?\d+ hold, \d+ do not apply", line)
    assert "Do not apply, by reason" in text


def test_a_refuted_statement_is_told_first():
    row = {"worst_step": 1, "why": "because 0.5"}
    verdicts = [
        {"name": "1 a", "applies": True, "holds": False, "margin": -1.0, **row},
        {"name": "2 b", "applies": True, "holds": True, "margin": 1.0, **row},
        {"name": "3 c", "applies": False, "holds": None, "margin": None, **row},
        {"name": "assumption: d", "applies": True, "holds": False, "margin": -1.0, **row},
    ]
    assert verdict_counts(verdicts) == (
        "1 refuted, 1 hold, 1 do not apply, 1 of 1 assumptions fail"
    )


def test_an_earlier_file_says_what_it_has_not(tmp_path):
    text = report(write_rows(comparison(), tmp_path / "made.json")).read_text()
    told = re.search(r'<p class="note" id="missing">(.*?)</p>', text)[1]
    assert told.startswith("Not in this file: loads by step (no trace was kept); histograms")


def test_markdown_has_both_tables(results, tmp_path):
    text = as_markdown(write_rows(comparison(), tmp_path / "made.json"))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 * 2 + 3 + 2
    assert {line.replace("\\|", "").count("|") for line in lines} == {11}
    assert as_markdown(results) == as_markdown(results / "rows.json")


def test_a_single_training_has_a_page(results, tmp_path):
    path = report(results / "runs" / "deepseek-0", tmp_path / "one.html")
    assert "deepseek-0 (deepseek, u = 0.001) has finished 4 steps" in path.read_text()


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
