"""What differs between two configs, and the error that says so."""

import pytest

from equipoise.training.settings import (
    SHOWN_DIFFERENCES,
    describe_differences,
    differences,
    refuse_other_settings,
)


def test_differences_have_both_values():
    one, other = {"steps": 4, "model": {"top_k": 2}}, {"steps": 4, "model": {"top_k": 3}}
    assert differences(one, other) == {"model.top_k": (2, 3)}
    assert describe_differences(one, other) == ["model.top_k: 2 there, 3 here"]


def test_a_setting_of_one_side_only_differs():
    assert describe_differences({"seed": 1}, {}) == ["seed: 1 there, None here"]


def test_what_changes_no_number_may_change():
    assert describe_differences({"out": "a", "lanes": 1}, {"out": "b", "lanes": 2}) == []


def test_nothing_to_refuse():
    refuse_other_settings("runs/a is of another config", [], "Choose another folder")


def test_the_error_has_problem_lines_and_remedy():
    with pytest.raises(ValueError, match=r"^there is another:\n  a\n  b\nChoose$"):
        refuse_other_settings("there is another", ["a", "b", "a"], "Choose")


def test_long_lists_are_cut():
    lines = [f"line {n}" for n in range(SHOWN_DIFFERENCES + 3)]
    with pytest.raises(ValueError, match="and 3 more") as error:
        refuse_other_settings("there is another", lines, "Choose")
    assert f"line {SHOWN_DIFFERENCES - 1}" in str(error.value)
    assert f"line {SHOWN_DIFFERENCES}" not in str(error.value)
