"""Paired differences, with scipy's paired t-test as judge."""

import numpy as np
import pytest
from scipy import stats

from equipoise.results.comparison.differences import (
    baseline_row,
    paired_difference,
    scheme_differences,
)
from equipoise.results.comparison.rows import SchemeRow
from equipoise.results.over_seeds import OverSeeds


def row(name, values, balancer=None):
    kept = {
        str(seed): value
        for seed, value in (values.items() if isinstance(values, dict) else enumerate(values))
    }
    about = {"name": name, "label": name, "balancer": balancer or name}
    return SchemeRow(about, len(kept), figures={"loss": OverSeeds.of_values(kept)})


@pytest.mark.parametrize("seeds", [2, 3, 5, 12])
def test_a_paired_test_agrees(seeds):
    draws = np.random.default_rng(seeds)
    ours, theirs = draws.normal(5, 1, seeds), draws.normal(5.3, 1, seeds)
    found = paired_difference(row("a", ours).values_of("loss"), row("b", theirs).values_of("loss"))
    judge = stats.ttest_rel(ours, theirs)
    assert found.mean == pytest.approx(np.mean(ours - theirs))
    assert found.chance == pytest.approx(judge.pvalue)
    assert found.interval == pytest.approx(tuple(judge.confidence_interval(0.95)))


def test_what_seeds_have_in_common_goes_out():
    common = np.array([5.0, 7.0, 3.0, 9.0, 6.0])
    ours, theirs = common + 0.1 + np.array([1, -1, 2, 0, -2]) / 1000, common
    assert stats.ttest_ind(ours, theirs).pvalue > 0.9  # unpaired, nothing would be seen
    assert scheme_differences([row("deepseek", theirs), row("quantile", ours)], "loss")[
        "quantile"
    ].significant


def test_a_missing_seed_is_left_out_of_both():
    ours, theirs = {0: 1.0, 2: 3.5, 3: 4.0}, {0: 0.5, 1: 100.0, 2: 3.0, 3: 3.2}
    found = scheme_differences([row("deepseek", theirs), row("quantile", ours)], "loss")["quantile"]
    assert found.seeds == ("0", "2", "3")
    assert found.chance == pytest.approx(stats.ttest_rel([1.0, 3.5, 4.0], [0.5, 3.0, 3.2]).pvalue)


def test_equal_values_are_no_difference():
    values = [5.1, 5.2, 5.3]
    found = scheme_differences([row("deepseek", values), row("quantile", values)], "loss")[
        "quantile"
    ]
    assert (found.mean, found.half, found.chance, found.significant) == (0, 0, 1, False)
    rounded = paired_difference(
        row("a", values).values_of("loss"), row("b", [5.1 + 1e-15, 5.2, 5.3]).values_of("loss")
    )
    assert not rounded.significant


def test_a_constant_difference_is_significant():
    values = np.array([5.1, 5.2, 5.3])
    found = scheme_differences([row("deepseek", values), row("quantile", values - 0.1)], "loss")[
        "quantile"
    ]
    assert (found.half, found.chance, found.significant) == (0, 0, True)
    assert found.mean == pytest.approx(-0.1)


def test_one_seed_has_no_interval():
    found = scheme_differences([row("deepseek", [5.0]), row("quantile", [4.0])], "loss")["quantile"]
    assert (found.mean, found.half, found.interval, found.significant) == (-1, None, None, False)


def test_many_comparisons_ask_for_more():
    base, gaps = np.zeros(5), np.array([0.5, 1.5, 0.7, 1.9, 0.1])
    chance = stats.ttest_rel(gaps, base).pvalue
    assert 0.05 / 7 < chance < 0.05
    alone = scheme_differences([row("deepseek", base), row("a", gaps)], "loss")
    seven = scheme_differences(
        [row("deepseek", base), *(row(name, gaps) for name in "abcdefg")], "loss"
    )
    assert alone["a"].significant
    assert not any(each.significant for each in seven.values())
    assert (
        seven["a"].half == alone["a"].half
    )  # the interval that is shown is that of the difference by itself


def test_false_alarms_are_as_rare_as_promised():
    """With seven schemes that differ by chance alone, some difference is called significant in at
    most 5% of the comparisons.
    """
    draws, alarms = np.random.default_rng(0), 0
    for _ in range(400):
        rows = [
            row("deepseek", draws.normal(size=4)),
            *(row(name, draws.normal(size=4)) for name in "abcdefg"),
        ]
        alarms += any(each.significant for each in scheme_differences(rows, "loss").values())
    assert alarms / 400 < 0.08


def test_values_that_are_not_finite_say_nothing():
    found = scheme_differences(
        [row("deepseek", [1.0, 2.0]), row("a", [float("nan"), 1.0])], "loss"
    )["a"]
    assert (found.half, found.significant) == (None, False)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["none", "aux", "deepseek"], "deepseek"),
        (["none", "aux", "quantile"], "aux"),
        (["none"], "none"),
    ],
)
def test_who_is_compared_with(names, chosen):
    assert baseline_row([row(name, [1.0]) for name in names]).name == chosen


def test_a_scheme_without_runs_is_not_compared_with():
    rows = [row("none", [1.0]), row("deepseek", []), row("quantile", [1.0])]
    assert baseline_row(rows).name == "quantile"
    assert baseline_row([row("none", [])]) is None
