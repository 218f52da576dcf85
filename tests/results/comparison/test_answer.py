"""The sentences on top: what is significant, what is not known, no winner inside the noise."""

import copy

from equipoise.results.comparison.answer import comparison_answer, significance_note
from equipoise.results.comparison.rows import comparison_results
from tests.results.comparison.made import comparison


def test_what_is_significant_and_what_is_not_known():
    said = comparison_answer(comparison_results(comparison()))
    assert said.startswith("Against u/|L-A| (DeepSeek), paired over 5 seeds, 300 steps of tiny. ")
    assert (
        "Imbalance over the training, idle device time over the training and validation "
        "imbalance are significantly higher under no balancing." in said
    )
    assert "No scheme is known to differ in validation loss" in said
    assert "curvature" not in said  # 0.29 against 0.30 with a spread of 0.02
    assert said.count(". ") <= 4


def test_a_significant_difference_is_named():
    kept = comparison()
    for run in kept["runs"]:
        if run["scheme"] == "curvature":
            run["result"]["training_imbalance"] -= 0.2
    kept["manifest"]["schemes"][2]["label"] = "curvature, look-ahead"
    said = comparison_answer(comparison_results(kept))
    assert (
        "Imbalance over the training is significantly lower under curvature with look-ahead, "
        "significantly higher" in said
    )


def test_one_seed_names_no_winner():
    said = comparison_answer(comparison_results(comparison(seeds=1)))
    assert said.startswith(
        "One seed, 300 steps of tiny. Imbalance over the training: no balancing 1.088"
    )
    assert "the 2 balanced schemes 0.2" in said
    assert "is not known: --seeds 5 gives intervals" in said
    assert "curvature" not in said


def test_another_scheme_to_compare_with_is_named():
    said = comparison_answer(comparison_results(comparison(schemes=("none", "curvature"))))
    assert said.startswith("Against curvature (deepseek is not among the finished schemes)")


def test_a_single_scheme_is_told_without_comparing():
    said = comparison_answer(comparison_results(comparison(seeds=1, schemes=("deepseek",))))
    assert "has a validation loss of" in said
    assert "chance alone would leave 2.1%" in said


def test_nothing_finished():
    kept = comparison(seeds=1)
    kept["runs"] = [
        {**{key: run[key] for key in ("name", "scheme", "seed")}, "error": "x"}
        for run in kept["runs"]
    ]
    assert "nothing to compare" in comparison_answer(comparison_results(kept))


def test_folders_of_earlier_versions_have_an_answer():
    for seeds in (1, 3):
        kept = copy.deepcopy(comparison(seeds=seeds))
        for run in kept["runs"]:
            known = ("validation_loss", "imbalance", "max_violation", "seconds")
            run["result"] = {key: run["result"][key] for key in known}
            run["measured"] = {"format": 1, "given_up": -0.2}
        found = comparison_results(kept)
        assert "alidation imbalance" in comparison_answer(found)
        assert "idle" not in comparison_answer(found)
        assert found.rows[0].mean_of("given_up") is None  # it was another figure then


def test_only_comparisons_with_an_interval_are_counted():
    kept = comparison()
    kept["runs"] = [run for run in kept["runs"] if run["scheme"] != "curvature" or run["seed"] == 0]
    assert "all 1 comparisons" in significance_note(comparison_results(kept))
    assert "paired over 1 to 5 seeds" in comparison_answer(comparison_results(kept))
