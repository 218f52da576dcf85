"""Any number of steps in a bounded number of bins."""

import math

from equipoise.results.follow.step_bins import KeptRows, MeanBins


def test_means_over_any_number_of_steps():
    bins = MeanBins(most=8)
    for step in range(1, 1001):
        bins.add(step, [float(step), 1.0])
    rows = bins.rows(banded=0)
    assert len(rows) <= 8
    assert rows[-1][0] == 1000
    assert all(low <= mean <= high for _, low, high, mean, _ in rows)
    weights = [last - before for (last, *_), before in zip(rows, [0] + [row[0] for row in rows])]
    mean = sum(w * row[3] for w, row in zip(weights, rows)) / sum(weights)
    assert math.isclose(mean, 500.5, rel_tol=1e-3)


def test_gaps_are_in_no_mean():
    bins = MeanBins(most=1)
    for value in (1.0, math.nan, 3.0):
        bins.add(1, [value, math.nan])
    assert bins.rows(banded=0) == [[1, 1.0, 3.0, 2.0, None]]


def test_rows_are_kept_as_they_are():
    rows = KeptRows(most=4)
    for step in range(100):
        rows.add(step, f"row {step}")
    assert len(rows) <= 4
    assert all(row == f"row {step}" for step, row in rows)
    assert next(iter(rows))[0] == 0


def test_wide_bins_need_few_rows():
    rows = KeptRows(most=4)
    rows.widen_to(0, 1000)
    assert rows.lacks(0, 1000)
    for step in range(0, 1001, rows.width):
        rows.add(step, step)
    assert not rows.lacks(0, 1000)
    rows.forget_from(500)
    assert max(step for step, _ in rows) < 500
    assert rows.lacks(900, 1000)
