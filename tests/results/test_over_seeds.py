"""One figure over seeds, and the way it is spelled in table.json."""

import math

import pytest

from equipoise.results.over_seeds import (
    NOT_MEASURED,
    OverSeeds,
    figures_from_json,
    figures_to_json,
)


def test_mean_and_spread():
    found = OverSeeds.of_values({"0": 1.0, "1": 4.0})
    assert (found.mean, found.spread) == (2.5, pytest.approx(4.5**0.5))
    assert OverSeeds.of_values({"0": 1.0}).spread is None
    assert OverSeeds.of_values({}) == NOT_MEASURED


def test_a_diverged_seed_has_no_spread():
    found = OverSeeds.of_values({"0": math.nan, "1": 4.0})
    assert math.isnan(found.mean)
    assert found.spread is None


def test_a_row_is_read_as_it_was_written():
    figures = {"loss": OverSeeds.of_values({"0": 1.0, "1": 4.0}), "floor": NOT_MEASURED}
    row = {"values": {key: each.values for key, each in figures.items()}}
    assert figures_from_json(row | figures_to_json(figures), figures) == figures


def test_rows_without_values_are_read():
    assert figures_from_json({"loss": 1.0, "loss_spread": None}, ("loss", "imbalance")) == {
        "loss": OverSeeds({}, 1.0, None)
    }
