"""`verify` for a person: the verdict first, a line a reason, names whole at 80 columns."""

import pytest

from equipoise.cli import main
from equipoise.cli.verdict_groups import group_by_reason, grouped_lines, verdict_summary
from equipoise.theorems.verdict import Verdict, not_applicable

HOLDS = [Verdict(f"{n} a statement, whose name is long", True, True, 0.5, 3, "x") for n in range(9)]
REFUTED = Verdict("4 Lagrangian, DeepSeek step", True, False, -0.25, 7, "slack; elsewhere: y")
SILENT = [not_applicable(f"{n} band, M(u)", f"u = {n}e-03 is not below u-bar") for n in (8, 9)]
OTHER = not_applicable("14 strong convexity", "the law is not known")
ASSUMED = Verdict("assumption: no ties", True, False, -1.0, 2, "many ties")


def test_the_verdict_stands_first(place, capsys):
    assert main(["verify", "runs/a", "--batches", "2"]) == 0
    first, about, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("Nothing is refuted: ")
    assert about == "The paper's statements on runs/a/trace."


def test_a_refutation_stands_before_all_else():
    found = [*HOLDS, ASSUMED, REFUTED, *SILENT, OTHER]
    assert verdict_summary(found).startswith("REFUTED: 1 statement; 9 hold, 3 do not apply.")
    lines = list(grouped_lines(found, 80))
    assert lines[:2] == ["Refuted", "  4 Lagrangian, DeepSeek step: margin -0.25 at step 7; slack"]


def test_where_nothing_applies_nothing_holds():
    summary = verdict_summary([*SILENT, OTHER])
    assert summary == "Nothing was checked: none of 3 statements applies."
    assert not any(line.startswith("Hold") for line in grouped_lines([*SILENT, OTHER], 80))


def test_reasons_that_differ_in_numbers_are_one():
    assert group_by_reason([*SILENT, OTHER]) == [
        ("u = 8e-03 is not below u-bar", ["8 band, M(u)", "9 band, M(u)"]),
        ("the law is not known", ["14 strong convexity"]),
    ]


@pytest.mark.parametrize("width", [80, 60, 120])
def test_names_are_whole_and_lines_fit(width):
    found = [*HOLDS, ASSUMED, REFUTED, *SILENT, OTHER]
    lines = list(grouped_lines(found, width))
    assert max(map(len, lines)) < width
    for verdict in found:
        name = verdict.name.removeprefix("assumption: ")
        assert sum(name in line for line in lines) == 1, name


def test_details_have_margins(place, capsys):
    assert main(["verify", "runs/a", "--batches", "2", "--details"]) == 0
    assert "margin" in capsys.readouterr().out
