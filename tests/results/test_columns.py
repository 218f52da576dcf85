"""Columns: one figure, one definition, and every key one that some file has."""

import pytest

from equipoise.results.arena import CELL_KEYS
from equipoise.results.columns import (
    ARENA_COLUMNS,
    COMPARISON_COLUMNS,
    COMPARISON_KEYS,
    SWEEP_COLUMNS,
    UPDATE_RATE,
    setting_column,
)
from equipoise.results.over_seeds import OverSeeds
from equipoise.results.run import LOGGED_LEVELS, Measured, RunResult
from equipoise.routing import metrics


def test_every_column_is_a_key_of_a_file():
    of_a_run = {*RunResult.__annotations__, *Measured.__annotations__}
    assert set(COMPARISON_KEYS) <= of_a_run
    assert {column.key for column in SWEEP_COLUMNS} <= set(RunResult.__annotations__)
    assert {column.key for column in ARENA_COLUMNS} <= set(CELL_KEYS)


def test_every_logged_level_is_measured_and_shown():
    assert set(LOGGED_LEVELS) <= set(metrics([3, 1]))
    assert set(LOGGED_LEVELS) <= {column.key for column in COMPARISON_COLUMNS}


@pytest.mark.parametrize("columns", [COMPARISON_COLUMNS, SWEEP_COLUMNS, ARENA_COLUMNS])
def test_headings_are_told_apart(columns):
    assert len({column.name for column in columns}) == len(columns)
    assert all(column.meaning for column in columns)


def test_numbers_as_they_are_written():
    imbalance, idle = COMPARISON_COLUMNS[1], COMPARISON_COLUMNS[5]
    figures = {
        "imbalance": OverSeeds.of_values({"0": 0.5, "1": 0.7}),
        "floor": OverSeeds.of_values({"0": 0.02, "1": 0.02}),
    }
    assert imbalance.cell(figures) == "0.600 (chance 0.020)"
    assert imbalance.cell(figures, spread=True) == "0.600 ± 0.141 (chance 0.020)"
    assert (idle.text(0.1234), idle.text(None)) == ("12.3%", "-")
    assert idle.change(-0.1234, 0.01) == "-12.3 ± 1.0"
    assert (idle.difference_unit, imbalance.difference_unit) == ("points", "")
    assert (UPDATE_RATE.text(1e-3), UPDATE_RATE.text(None)) == ("0.001", "-")


def test_settings_without_a_column_show_their_own_name():
    assert (setting_column("learning_rate").short, setting_column("steps").name) == ("lr", "steps")
    assert setting_column("preset").text("tiny") == "tiny"
