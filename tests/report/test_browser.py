"""The page in a real browser, without a network."""

import re
from pathlib import Path

import pytest

from equipoise.report import report
from equipoise.results.scheme_style import style_of_scheme

KEPT = Path(__file__).parents[2] / "docs" / "results" / "tiny.json"

SECTIONS = (
    "Loads, expert by step",
    "Imbalance during the training",
    "Loss, as a difference from",
    "Layer by layer: max violation",
    "Scores, step by step (the paper's figure 3)",
    "Shifts, step by step (the paper's figure 4)",
    "The price of balance",
    "The paper's statements on each run",
    "The table",
)
NAMES = "(id) => document.getElementById(id).data.map((trace) => trace.meta).filter((name) => name)"
CELLS = """(id) => [...document.querySelectorAll(`#${id} image`)]
  .map((each) => each.getAttribute('href'))"""
TOLD = """(id) => [...document.querySelectorAll(`#${id} svg`)]
  .map((each) => each.children[1].textContent)"""
FIRST_RIDGES = """() => [...document.querySelectorAll('#scores svg')]
  .map((svg) => svg.querySelector('path').getAttribute('d'))"""
PLACES = "main > *, .pair > *, .multiples > *, .tiles > *"
BOXES = """(places) => [...document.querySelectorAll(places)].map((each) => {
  const box = each.getBoundingClientRect();
  return { id: each.id || each.tagName,
           parent: each.parentElement.className + each.parentElement.id,
           left: box.left, right: box.right, top: box.top, bottom: box.bottom };
}).filter((box) => box.right > box.left && box.bottom > box.top)"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_errors(opened, width, scheme):
    page, errors = opened(width=width, scheme=scheme)
    assert errors == []
    headings = page.locator("h2").all_text_contents()
    assert all(any(each.startswith(name) for each in headings) for name in SECTIONS)
    assert page.locator(".js-plotly-plot").count() == 3
    for name, number in {"loads": 4, "violation": 4, "scores": 4, "shifts": 3, "layer": 2}.items():
        assert page.locator(f"#{name} svg.chart").count() == number, name
    assert page.locator(".tile").count() == 4
    assert page.locator("#results tbody tr").count() == 4


def test_one_legend_hides_a_scheme_everywhere(opened):
    page, errors = opened()
    assert "quantile" in page.evaluate(NAMES, "imbalance")
    page.locator("#legend button", has_text="quantile").click()
    for name in ("imbalance", "loss-difference"):
        assert "quantile" not in page.evaluate(NAMES, name)
    for name in ("loads", "violation", "scores", "shifts", "results"):
        assert page.locator(f"#{name} [data-scheme=quantile]:visible").count() == 0
        assert page.locator(f"#{name} [data-scheme=deepseek]:visible").count() == 1
    # what is drawn again stays hidden
    page.locator("#loads-layer").select_option(index=1)
    assert page.locator("#loads [data-scheme=quantile]:visible").count() == 0
    page.locator("#legend button", has_text="none").last.click()
    assert page.evaluate(NAMES, "imbalance") == []
    page.locator("#legend button", has_text="deepseek").click()
    assert set(page.evaluate(NAMES, "imbalance")) == {"deepseek"}
    page.locator("#legend button", has_text="all").click()
    assert "quantile" in page.evaluate(NAMES, "imbalance")
    assert errors == []


def test_schemes_look_the_same_in_every_figure(opened):
    page, _ = opened()
    color = style_of_scheme("quantile").color
    line = "() => document.getElementById('imbalance').data.find((t) => t.name === 'quantile')"
    assert page.evaluate(f"{line[:-1]}).line.color") == color
    assert page.locator(f"#loads [data-scheme=quantile] tspan[fill='{color}']").count() == 1
    assert page.locator(f"#shifts [data-scheme=quantile] path[fill='{color}']").count() > 0


def test_all_start_from_the_same_weights_and_look_so(opened):
    page, _ = opened()
    found = page.evaluate(FIRST_RIDGES)
    assert len(found) == 4
    assert len(set(found)) == 1


def test_another_layer_and_another_order_are_drawn(opened):
    page, _ = opened()
    before = page.evaluate(CELLS, "loads")
    page.locator("#loads-layer").select_option(index=1)
    layer = page.evaluate(CELLS, "loads")
    assert all(one != other for one, other in zip(before, layer, strict=True))
    page.locator("#loads-order").select_option("load")
    assert page.evaluate(CELLS, "loads") != layer


def test_one_cursor_goes_through_all_maps(opened):
    page, _ = opened(width=390)
    summaries = page.evaluate(TOLD, "loads")
    page.locator("#loads svg").first.click(position={"x": 150, "y": 100})
    told = page.evaluate(TOLD, "loads")
    assert len(told) == 4
    assert len({each.split(":")[0] for each in told}) == 1
    assert all(re.fullmatch(r"step \d+, expert \d+: [\d.]+x", each) for each in told)
    page.mouse.move(0, 0)
    assert page.evaluate(TOLD, "loads") == summaries


def test_a_phone_shows_two_schemes_side_by_side(opened):
    page, _ = opened(width=390)
    one, other = (page.locator("#loads svg").nth(n).bounding_box() for n in (0, 1))
    assert one["y"] == other["y"]
    for words in page.locator("#loads svg text, #scores svg text, #violation svg text").all()[:60]:
        assert words.bounding_box()["x"] + words.bounding_box()["width"] <= 390


def test_the_end_of_the_scale_is_told(opened):
    page, _ = opened()
    assert "above 3x" in page.locator("#loads-scale svg").text_content()
    assert re.search(
        r"above 3x, most|nothing is above", page.locator("#loads-scale").text_content()
    )


@pytest.mark.parametrize(
    ("values", "end"), [([0.3] * 9 + [7], 0.5), ([5.0] * 9, 8), ([], 1), ([0] * 4, 0.1)]
)
def test_the_scale_of_violations_follows_the_most_of_them(opened, values, end):
    page, _ = opened()
    assert page.evaluate("(values) => scaleEnd(values, 0.75)", values) == end


def test_a_tap_on_a_layer_opens_its_loads_and_shifts(opened):
    page, errors = opened()
    first_layer = {"x": 150, "y": 36 + 5}
    page.locator("#violation [data-scheme=quantile] svg").click(position=first_layer)
    assert page.locator("#layer-name").text_content() == "blocks.1 under quantile"
    assert page.locator("#layer-paths polyline").count() == 8
    page.locator("#violation [data-scheme=none] svg").click(position=first_layer)
    assert page.locator("#layer-paths").text_content() == "This scheme has no shift."
    assert errors == []


def test_raw_loss_is_behind_a_toggle(opened):
    page, _ = opened()
    assert "deepseek" not in page.evaluate(NAMES, "loss-difference")
    page.locator("#raw-loss").check()
    assert "deepseek" in page.evaluate(NAMES, "loss-difference")
    losses = "() => document.getElementById('loss-difference').data.at(-1).y.at(-1)"
    assert page.evaluate(losses) > 1


def test_tables_are_sorted_and_tell_what_they_mean(opened):
    page, _ = opened()
    page.locator("#results th button", has_text="training imbalance").click()
    values = page.locator("#results tbody tr td:nth-child(4)").evaluate_all(
        "(cells) => cells.map((cell) => Number(cell.dataset.value))"
    )
    assert values == sorted(values)
    assert "of each step's own batch" in page.locator("#results-told").text_content()
    page.locator("#results th button", has_text="training imbalance").click()
    again = page.locator("#results tbody tr td:nth-child(4)").evaluate_all(
        "(cells) => cells.map((cell) => Number(cell.dataset.value))"
    )
    assert again == values[::-1]


def test_a_file_of_an_earlier_version_is_drawn(opened, tmp_path):
    page, errors = opened(report(KEPT, tmp_path / "old.html"))
    assert errors == []
    assert page.locator("#loads svg.chart").count() == 8
    assert "paths of shifts" in page.locator("#missing").text_content()
    assert page.locator("#layer-paths").text_content() == "Paths of shifts are not in this file."


def test_data_can_be_saved(opened, results):
    page, _ = opened()
    with page.expect_download() as download:
        page.locator("[data-of=loss] button", has_text="CSV").click()
    assert Path(download.value.path()).read_text() == (results / "figures" / "loss.csv").read_text()
    for format, begins in {"SVG": b"<svg", "PNG": b"\x89PNG"}.items():
        with page.expect_download() as download:
            page.locator("[data-of=loads] button", has_text=format).click()
        assert Path(download.value.path()).read_bytes().startswith(begins)


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overlaps(opened, width):
    page, _ = opened(width=width)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    boxes = page.evaluate(BOXES, PLACES)
    for n, one in enumerate(boxes):
        for other in boxes[n + 1 :]:
            if one["parent"] != other["parent"]:
                continue
            apart = one["right"] <= other["left"] + 1 or other["right"] <= one["left"] + 1
            assert (
                apart or one["bottom"] <= other["top"] + 1 or other["bottom"] <= one["top"] + 1
            ), (one, other)


def test_dark_is_dark(opened):
    shades = {}
    for scheme in ("light", "dark"):
        page, _ = opened(scheme=scheme)
        shades[scheme] = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert shades == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 29)"}
