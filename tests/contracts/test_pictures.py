"""Drawings of the documents are what their scripts in docs/_site draw today."""

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import equipoise
from equipoise.balancing import method_spec

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
DRAWINGS = sorted(PICTURES.rglob("*.svg"))


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "_site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words_and_numbers(drawing):
    """What a drawing says without its numbers, and these."""
    pattern = r"-?\d+\.?\d*"
    return re.sub(pattern, "", drawing), [float(each) for each in re.findall(pattern, drawing)]


def test_the_path_of_a_token_is_what_equipoise_does():
    drawn = script("draw_token_path")
    assert drawn.picture(drawn.one_step()) == (PICTURES / "token-path.svg").read_text()


def test_the_path_shows_a_choice_that_the_shift_changed():
    step = script("draw_token_path").one_step()
    best = sorted(range(4), key=step.scores.__getitem__)[-2:]
    assert sorted(best) != step.chosen == [1, 3]
    assert step.gates == [step.scores[expert] for expert in step.chosen]
    assert [move > 0 for move in step.moved] == [load < 12 for load in step.loads]


@pytest.mark.parametrize("name", ["none", "curvature"])
def test_figures_of_balancers_are_of_today(name):
    drawn, reference = (
        words_and_numbers(each)
        for each in (
            script("draw_balancers").figure(method_spec(name)),
            (PICTURES / "balancers" / f"{name}.svg").read_text(),
        )
    )
    assert drawn[0] == reference[0]
    assert drawn[1] == pytest.approx(reference[1], abs=0.5)


def test_every_balancer_has_its_figure_in_the_table():
    table = (ROOT / "docs/balancers-compared.md").read_text()
    for name in equipoise.balancers():
        assert (PICTURES / "balancers" / f"{name}.svg").exists(), (
            f"python docs/_site/draw_balancers.py {name}"
        )
        assert f"| `{name}` | ![{name}](pictures/balancers/{name}.svg) |" in table


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_drawings_are_read_in_both_settings_and_aloud(path):
    drawing = path.read_text()
    tree = ElementTree.fromstring(drawing)
    assert tree.find("{http://www.w3.org/2000/svg}title").text
    assert "prefers-color-scheme: dark" in drawing
    assert not re.search(r"(?:href|src)=|https?://(?!www\.w3\.org)", drawing)
