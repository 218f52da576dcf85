"""Equations are cited by the paper's numbers: docs/notation.md says what each is and who cites it.

The paper is not needed: a number is right if the table lists the citing file in that number's row.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "equipoise"
TABLE = ROOT / "docs" / "notation.md"
NUMBERS = r"\d+(?:(?:,|\s+and|\s+to|,\s+and)\s+\d+)*"
CITATION = re.compile(rf"\beqs?\.\s+({NUMBERS})")
ROW = re.compile(rf"^\| ({NUMBERS}) \| ([^|]+) \| ?([^|]*)\|$", re.M)


def cited_numbers(text):
    """The numbers that a text cites, as in "eq. 7", "eqs. 3 and 10", "eqs. 14 to 16"."""
    found = set()
    for match in CITATION.finditer(text):
        numbers = [int(number) for number in re.findall(r"\d+", match[1])]
        found |= (
            set(range(numbers[0], numbers[-1] + 1))
            if re.search(r"\bto\b", match[1])
            else set(numbers)
        )
    return found


def table_rows(text):
    """number -> the files that the table says cite it."""
    rows = {}
    for match in ROW.finditer(text[text.index("## Equations") :]):
        files = {file.strip() for file in match[3].split(",")} - {""}
        for number in re.findall(r"\d+", match[1]):
            assert int(number) not in rows, f"equation {number} has two rows"
            rows[int(number)] = files
    return rows


def citing_files():
    """number -> the files of the package, the docs and the tests that cite it."""
    files = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    files |= {str(path.relative_to(ROOT)): path for path in (ROOT / "docs").rglob("*.md")}
    files |= {str(path.relative_to(ROOT)): path for path in (ROOT / "tests").rglob("*.py")}
    files |= {"README.md": ROOT / "README.md"}
    found = {}
    for name, path in files.items():
        if path not in (TABLE, Path(__file__)):
            for number in cited_numbers(path.read_text(encoding="utf-8")):
                found.setdefault(number, set()).add(name)
    return found


def disagreements(rows, citing):
    """What the table and the files say differently, in words."""
    for number in sorted(rows.keys() | citing.keys()):
        listed, found = rows.get(number, set()), citing.get(number, set())
        for file in sorted(found - listed):
            yield f"{file} cites eq. {number}: is that the number? If so, list it in {TABLE.name}"
        for file in sorted(listed - found):
            yield f"{TABLE.name} says that {file} cites eq. {number}, but it does not"


def test_every_citation_stands_in_the_table():
    assert list(disagreements(table_rows(TABLE.read_text(encoding="utf-8")), citing_files())) == []


def test_the_table_is_whole():
    rows = table_rows(TABLE.read_text(encoding="utf-8"))
    assert sorted(rows) == list(range(1, 39))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("the dual update (eq. 7)", {7}),
        ("the paper's eqs. 3 and 10.", {3, 10}),
        ("eqs. 14, 15 and 16", {14, 15, 16}),
        ("eqs. 14 to\n    16", {14, 15, 16}),
        ("(eq. 29, Prop. 12)", {29}),
        ("seq. 7 of them, freq. 3", set()),
    ],
)
def test_citations_are_read(text, numbers):
    assert cited_numbers(text) == numbers


def test_wrong_numbers_are_seen():
    rows = table_rows("## Equations\n| 7 | dual update | a.py |\n| 8, 9 | more | |\n")
    assert list(disagreements(rows, {7: {"a.py"}})) == []
    assert "a.py cites eq. 8" in next(disagreements(rows, {7: {"a.py"}, 8: {"a.py"}}))
    assert "b.py cites eq. 99" in next(disagreements(rows, {7: {"a.py"}, 99: {"b.py"}}))
    assert "a.py cites eq. 7, but it does not" in next(disagreements(rows, {}))
