"""The package stays as readable as it is: aims of docs/decisions.md, measured by measures.py."""

import statistics

import pytest

from tests.contracts import measures

TEXTS = measures.modules()


def test_a_name_has_one_meaning():
    assert measures.share_of_shared_names(TEXTS) < 0.03, measures.shared_names(TEXTS)


def test_functions_say_what_they_do():
    assert measures.share_of_one_word_functions(TEXTS) < 0.5


def test_lines_are_short():
    assert measures.share_of_long_lines(TEXTS) < 0.005


def test_a_fifth_is_prose():
    assert 0.18 < measures.share_of_prose(TEXTS) < 0.35


def test_rows_have_types():
    assert measures.untyped_signatures(TEXTS) < 20


def test_files_and_functions_are_short():
    files, functions = measures.file_lines(TEXTS), measures.function_lines(TEXTS)
    assert statistics.median(files) < 130
    assert files[-1] < 400
    assert statistics.median(functions) <= 8
    assert functions[len(functions) * 9 // 10] <= 22


@pytest.mark.parametrize(
    ("measure", "worse"),
    [
        (measures.share_of_shared_names, {"a.py": "def run(): ...", "b.py": "_run = 1"}),
        (measures.share_of_one_word_functions, {"a.py": "def go() -> None:\n    pass"}),
        (measures.share_of_long_lines, {"a.py": "x" * 101}),
        (measures.share_of_prose, {"a.py": '"""One."""\nx = 1'}),
        (measures.untyped_signatures, {"a.py": "def f(row: dict[str, Any]) -> None: ..."}),
    ],
)
def test_each_measure_sees_what_it_measures(measure, worse):
    assert measure(worse) > 0
    assert measure({"a.py": "def read_row() -> int:\n    return 1"}) == 0
