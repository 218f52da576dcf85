"""Figures as files: each is there, of its kind, and drawn."""

import builtins
from concurrent.futures import ThreadPoolExecutor

import pytest

from equipoise.report import draw, report
from equipoise.report.pictures import PlotPart, compose_svg, draw_pictures

FIGURES = {
    "loads",
    "imbalance",
    "loss-difference",
    "violation",
    "layer",
    "scores",
    "shifts",
    "price",
}
BEGINS = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}


@pytest.fixture
def drawn(browser):
    """In a thread of its own: playwright allows one session in each, and the tests have one here.
    Skipped without a browser.
    """

    def run(*arguments):
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(draw, *arguments).result()

    return run


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_every_figure_becomes_a_file(drawn, results, tmp_path, kind):
    made = drawn(report(results), kind, tmp_path / "pictures")
    assert {path.stem for path in made} == FIGURES
    for path in made:
        assert path.read_bytes().startswith(BEGINS[kind])
        assert path.stat().st_size > 4000
    assert (tmp_path / "pictures/loss.csv").read_text() == (
        results / "figures/loss.csv"
    ).read_text()


def test_loads_are_drawn_for_every_scheme(drawn, results, tmp_path):
    drawn(report(results), "svg", tmp_path)
    text = (tmp_path / "loads.svg").read_text()
    assert [name in text for name in (">no balancing<", ">u/√n<", ">quantile<")] == [True] * 3
    assert text.count("<image") == 4
    assert "Shifts, step by step" in (tmp_path / "shifts.svg").read_text()


def test_rows_are_filled_in_turn():
    text, size = compose_svg(
        "a < b",
        [
            PlotPart("<svg/>", 700, 100),
            PlotPart("<svg/>", 700, 50, "two"),
            PlotPart("<svg/>", 300, 90),
        ],
    )
    assert "a &lt; b" in text
    assert [f"translate{place}" in text for place in ("(12,38)", "(12,176)", "(724,150)")] == [
        True
    ] * 3
    assert size == (1036, 252)


def test_missing_tools_are_named(results, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("playwright"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match="pip install playwright"):
        draw_pictures(results / "report.html", tmp_path, "png")


def test_other_kinds_are_refused(results, tmp_path):
    with pytest.raises(ValueError, match="'gif': there are png, svg, pdf"):
        draw_pictures(results / "report.html", tmp_path, "gif")
