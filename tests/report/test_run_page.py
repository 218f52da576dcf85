"""The page of a single run: finished, stopped, running."""

import csv
import re
from dataclasses import replace

import pytest

from equipoise.report import report
from equipoise.storage.locks import is_locked, take_lock
from tests.watch.made_runs import made_run, new_trace, row_of


def answer_of(path):
    return re.search(r'<p class="answer">(.*?)</p>', path.read_text())[1]


def test_a_stopped_training_has_a_page(tmp_path):
    run = made_run(tmp_path / "run")
    (run / ".training.lock").touch()
    answer = answer_of(report(run))
    assert "run (deepseek) has stopped at step 10 of 40." in answer
    assert "0.4 on the validation set at step 10, 4 times what chance alone leaves (0.1)" in answer


def test_a_running_training_has_a_page(tmp_path):
    import os

    run = made_run(tmp_path / "run")
    held = take_lock(run / ".training.lock")
    assert is_locked(run / ".training.lock")
    assert "is running, at step 10 of 40" in answer_of(report(run))
    os.close(held)
    assert is_locked(run / ".training.lock") is False
    assert is_locked(run / "no.lock") is None
    assert "has stopped" in answer_of(report(run))


def test_a_trace_alone_has_a_page(tmp_path):
    new_trace(tmp_path / "hf", range(1, 4)).close()
    assert "hf (deepseek, u = 0.001) is running, at step 3." in answer_of(report(tmp_path / "hf"))


def test_a_failed_training_says_so(tmp_path):
    run = made_run(tmp_path / "run")
    (run / "failure.json").write_text('{"error": "no memory"}')
    assert "has failed at step 10" in answer_of(report(run))


def test_its_data_lie_beside_it(tmp_path):
    run = made_run(tmp_path / "run")
    report(run)
    rows = list(csv.DictReader((run / "figures" / "imbalance.csv").open()))
    assert float(rows[1]["imbalance"]) == pytest.approx(row_of(2)["imbalance"], rel=1e-3)
    loads = list(csv.DictReader((run / "figures" / "loads.csv").open()))
    assert {row["layer"] for row in loads} == {"a", "b"}
    assert len(loads) == 20


def test_the_same_run_gives_the_same_page(tmp_path):
    run = made_run(tmp_path / "run")
    (run / ".training.lock").touch()
    assert report(run).read_text() == report(run, tmp_path / "again.html").read_text()


def test_a_finished_training_shows_its_verdicts(results, opened, tmp_path):
    path = report(results / "runs" / "deepseek-0", tmp_path / "one.html")
    assert "has finished" in answer_of(path)
    page, errors = opened(path)
    assert errors == []
    # a line for each that holds; the others by their reason, each with its names
    assert page.locator("#verdicts details").count() > 5
    assert {each[0] for each in page.locator("#verdicts summary").all_text_contents()} <= {"✓", "✗"}
    assert page.locator("#verdicts .reasons li").count() < 12
    reason = page.locator("#verdicts .reasons li", has_text="path").first.text_content()
    assert re.match(r"3: .*11 band entry", reason)
    assert page.locator("#loads .whole").count() > 0


@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_screen(opened, tmp_path, width):
    page, errors = opened(report(made_run(tmp_path / "run")), width=width)
    assert errors == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert page.locator("#loads svg.chart, #layers svg.chart, #shifts svg.chart").count() == 3


def test_a_tap_on_a_layer_opens_it(opened, tmp_path):
    page, errors = opened(report(made_run(tmp_path / "run")))
    page.locator("#layers").scroll_into_view_if_needed()
    box = page.locator("#layers image").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 0.75 * box["height"])
    assert page.locator("#shifts-layer").text_content() == "b"
    assert page.locator("#layer").input_value() == "1"
    assert errors == []


LINES = """(values) => {
  const place = document.getElementById('imbalance'); place.cursor = null;
  lineChart(place, { label: 'x', yTitle: 'y', unit: 'u', digits: 2, log: true, floors: [],
    series: [{ label: 'a', words: 't', color: '#123456', glyph: 'o', y: values,
               x: values.map((_, n) => n + 1) }] });
  return place.querySelector('path.line').getAttribute('d');
}"""


@pytest.mark.parametrize(
    ("values", "pieces", "points"),
    [([1, 2, 3], 1, 3), ([1, None, 3], 2, 2), ([1, 0, 3], 2, 2), ([2], 1, 1)],
)
def test_a_line_is_broken_where_a_value_is_missing(opened, tmp_path, values, pieces, points):
    page, errors = opened(report(made_run(tmp_path / "run")))
    path = page.evaluate(LINES, values)
    assert (path.count("M"), path.count(",")) == (pieces, points)
    assert "NaN" not in path
    assert errors == []


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.15, 0.24], [0.16, 0.18, 0.2, 0.22, 0.24]),
        ([0.01, 0.9], [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]),
        ([1e-4, 1.0], [1e-4, 1e-3, 1e-2, 0.1, 1.0]),
        ([3.0], [2.9, 2.95, 3.0, 3.05, 3.1]),
    ],
)
def test_an_axis_has_at_least_three_numbers(opened, tmp_path, values, ticks):
    """A short training spans less than a decade, where 1, 2 and 5 are one number or none."""
    page, errors = opened(report(made_run(tmp_path / "run")))
    assert page.evaluate("(values) => valueAxis(values, true).ticks", values) == ticks
    assert page.evaluate("() => valueAxis([3.1, 5.8], false).ticks") == [3, 3.5, 4, 4.5, 5, 5.5]
    assert errors == []


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([4], "step 4"),
        ([10, 20, 30], "steps 10, 20, 30"),
        (list(range(1, 61)), "each of steps 1 to 60"),
        (list(range(10, 200, 10)), "steps 10 to 190"),
    ],
)
def test_whole_batches_are_told_in_few_words(opened, tmp_path, steps, words):
    page, _ = opened(report(made_run(tmp_path / "run")))
    assert page.evaluate("(steps) => stepsInWords(steps)", steps) == words


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["blocks.1", "blocks.2"], ["blocks.1", "blocks.2"]),
        (["model.layers.0.mlp", "model.layers.12.mlp"], ["0", "12"]),
        (["encoder.first.moe", "decoder.second_of_many.router"], ["0", "1"]),
        (["model.layers.0.mlp"], ["0"]),
    ],
)
def test_layers_have_short_names_beside_the_map(opened, tmp_path, names, short):
    page, _ = opened(report(made_run(tmp_path / "run")))
    assert page.evaluate("(names) => shortLayers(names)", names) == short


def test_margins_that_are_not_finite_are_left_out(tmp_path):
    from equipoise.report.run.messages import make_message
    from equipoise.results.follow.run_follower import RunFollower

    run = RunFollower("run", made_run(tmp_path / "run"))
    run.poll()
    verdict = {"name": "1", "applies": True, "holds": True, "margin": float("inf"), "why": ""}
    snapshot = replace(run.snapshot(), measured={"verdicts": [{**verdict, "worst_step": 1}]})
    assert make_message([snapshot], {})["runs"][0]["verdicts"][0]["margin"] is None


def test_a_trace_that_cannot_be_read_has_no_page(tmp_path):
    new_trace(tmp_path / "hf", range(1, 4)).close()
    (tmp_path / "hf" / "trace.json").write_text('{"layers": ')
    with pytest.raises(ValueError, match=r"nothing to show: .*trace\.json"):
        report(tmp_path / "hf")


def test_what_a_page_lacks_is_said(tmp_path):
    run = made_run(tmp_path / "run")
    (run / "trace" / "trace.json").write_text('{"layers": ')
    with pytest.warns(UserWarning, match=r"the page lacks something of .*trace\.json"):
        report(run)
