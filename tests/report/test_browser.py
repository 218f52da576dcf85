"""The page in a real browser, without a network."""

from pathlib import Path

import pytest

BARS = "(n) => document.querySelectorAll('#shifts .plot')[n].data[0].y"
BOXES = """() => [...document.querySelectorAll('main > *, .pair > *, .grid > *')].map((each) => {
  const box = each.getBoundingClientRect();
  return { id: each.id || each.tagName,
           parent: each.parentElement.className + each.parentElement.id,
           left: box.left, right: box.right, top: box.top, bottom: box.bottom };
}).filter((box) => box.right > box.left && box.bottom > box.top)"""


def test_it_opens_without_errors(opened):
    page, errors = opened()
    assert errors == []
    assert page.locator(".js-plotly-plot").count() == 2 + 4 + 4 + 1
    assert page.locator("#results tbody tr").count() == 4


def test_the_slider_moves_the_histograms(opened):
    page, _ = opened()
    last, label = page.evaluate(BARS, 1), page.locator("#shifts-step").text_content()
    page.locator("#shifts-slider").fill("0")
    assert page.evaluate(BARS, 1) != last
    assert (label, page.locator("#shifts-step").text_content()) == ("4", "1")


def test_series_toggle(opened):
    page, _ = opened()
    page.locator("#loss .legendtoggle").first.click()
    page.wait_for_function("() => document.getElementById('loss').data[0].visible === 'legendonly'")


def test_another_layer_is_drawn(opened):
    page, _ = opened()
    before = page.evaluate("() => document.getElementById('loads').data[0].z")
    page.locator("#loads-layer").select_option(index=1)
    assert page.evaluate("() => document.getElementById('loads').data[0].z") != before


def test_data_can_be_saved(opened, results):
    page, _ = opened()
    with page.expect_download() as download:
        page.locator("[data-of=loss] button", has_text="CSV").click()
    assert Path(download.value.path()).read_text() == (results / "figures" / "loss.csv").read_text()


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_overlaps(opened, width):
    page, _ = opened(width=width)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    boxes = page.evaluate(BOXES)
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
