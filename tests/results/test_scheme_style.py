"""One look for each scheme, the same everywhere and in every process."""

import subprocess
import sys

import pytest

import equipoise
from equipoise.experiments.schemes import SCHEMES
from equipoise.results.scheme_style import (
    COLORS,
    MARKERS,
    style_of_scheme,
    styles_side_by_side,
    styles_to_json,
    terminal_label,
)


def test_no_two_schemes_look_alike():
    names = {scheme.name for scheme in SCHEMES} | set(equipoise.balancers())
    assert len({style_of_scheme(name) for name in names}) == len(names)


def test_the_compared_schemes_differ_in_colour_and_in_marker():
    styles = [style_of_scheme(scheme.name) for scheme in SCHEMES]
    assert len({style.color for style in styles}) == len(styles)
    assert len({style.marker for style in styles}) == len(styles)


@pytest.mark.parametrize("name", ["my balancer", "", "<b>", "ünicode"])
def test_an_unknown_name_has_a_style_of_its_own(name):
    style = style_of_scheme(name)
    assert style.color in COLORS.values()
    assert style.color != style_of_scheme("none").color
    assert MARKERS[style.marker] == style.glyph


def test_an_unknown_name_looks_the_same_in_another_process():
    script = (
        "from equipoise.results.scheme_style import style_of_scheme as s; print(*s('my balancer'))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == list(style_of_scheme("my balancer"))


def test_pages_get_the_styles_by_name():
    assert styles_to_json(["aux"]) == {
        "aux": {"color": "#d98200", "marker": "square", "glyph": "■"}
    }


def test_a_label_with_brackets_is_text_on_the_terminal():
    console = pytest.importorskip("rich.console").Console(width=80, color_system=None)
    with console.capture() as printed:
        console.print(terminal_label("aux", "[red]aux[/red]"))
    assert printed.get() == "■ [red]aux[/red]\n"


def test_names_side_by_side_have_a_colour_each():
    """Runs of one scheme are told apart by their names, of which many would share a colour."""
    names = ["deepseek", *(f"u={number}" for number in range(10))]
    styles = styles_side_by_side(names)
    assert len({style.color for style in styles}) == 11
    assert styles[0] == style_of_scheme("deepseek")
    # alone each has the colour that follows from its name
    assert [styles_side_by_side([name])[0] for name in names] == [*map(style_of_scheme, names)]
    # a later one takes no colour away
    assert styles_side_by_side(names[:5]) == styles[:5]
    assert len(styles_side_by_side([f"run {number}" for number in range(30)])) == 30


def test_schemes_side_by_side_look_as_everywhere():
    names = ["run", "quantile", "curvature", "deepseek"]
    styles = styles_side_by_side(names)
    assert styles[1:] == [style_of_scheme(name) for name in names[1:]]
    assert styles[0].color not in {style.color for style in styles[1:]}
