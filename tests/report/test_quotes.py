"""Documents quote a comparison's answer as `equipoise report --markdown` says it today."""

import re
from pathlib import Path

import pytest

from equipoise.results.comparison.answer import comparison_answer, significance_note
from equipoise.results.comparison.rows import read_comparison

ROOT = Path(__file__).parents[2]
START = "Against u/|L-A| (DeepSeek), paired over"
KEPT = [
    read_comparison(ROOT / "docs" / "results" / f"{name}.json") for name in ("tiny", "paper-tiny")
]


def quotes(name, start):
    """What follows each occurrence, with any white space as one space."""
    text = " ".join((ROOT / name).read_text().split())
    return [text[found.start() :] for found in re.finditer(re.escape(start), text)]


PAGES = ("docs/results/tiny.md", "docs/results/paper-tiny.md")


@pytest.mark.parametrize(("name", "number"), [("README.md", 0), *((page, 1) for page in PAGES)])
def test_quoted_answers_are_those_of_the_code(name, number):
    found = quotes(name, START)
    assert len(found) >= number
    for quote in found:
        assert quote.startswith(tuple(comparison_answer(kept) for kept in KEPT))


@pytest.mark.parametrize("page", PAGES)
def test_quoted_notes_are_those_of_the_code(page):
    (quote,) = quotes(page, "±: 95% interval")
    assert quote.startswith(significance_note(KEPT[0]))
