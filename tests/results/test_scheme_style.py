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
