"""The page of a sweep: computed from its table, complete, escaped, and drawn in a real browser."""

import csv
import json

import pytest

from equipoise.experiments.processes.job import record_failure
from equipoise.experiments.sweep.grid import Grid
from equipoise.experiments.sweep.sweep import enter_folder, write_ranking
from equipoise.report import report
from equipoise.report.sweep.answer import sweep_answer
from equipoise.report.sweep.figures import best_by_rate
from equipoise.results.over_seeds import OverSeeds
from equipoise.results.sweep import SettingRow, SweepTable, load_sweep

AXES = {
    "balancer": ["deepseek", "aux"],
    "update_rate": [1e-3, 1e-2, 1e-1],
    "learning_rate": [1e-4, 1e-3],
    "seed": [0, 1],
}


def loss(settings):
    """Made up: lowest at u = 1e-2 for deepseek and at 1e-1 for aux, and always at the higher
    learning rate.
    """
    if settings["balancer"] == "none":
        return 5.2
    best = 1e-2 if settings["balancer"] == "deepseek" else 1e-1
    return (
        5
        + abs(settings["update_rate"] - best)
        + 500 * (1e-3 - settings["learning_rate"])
        + 0.01 * settings["seed"]
    )


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    trials = Grid("made up", {}, [AXES, {"balancer": ["none"]}]).trials(folder)
    enter_folder(folder, trials)
    for trial in trials:
        trial.job.folder.mkdir(parents=True)
        if trial.name == "aux_u=0.1_lr=0.0001_seed=1":
            record_failure(trial.job.folder, "<script>alert(1)</script>\n(exit code 2)")
            continue
        figures = {
            "validation_loss": loss(trial.settings),
            "imbalance": 0.2,
            "max_violation": 0.5,
            "train_loss": 5.0,
        }
        about = {"preset": "tiny", "balancer": "deepseek", "update_rate": None, "seed": 0}
        (trial.job.folder / "result.json").write_text(
            json.dumps({**figures, **about, "seconds": 1.0, "steps": 300})
        )
    write_ranking(folder)
    report(folder)
    return folder


def test_the_answer_follows_the_data(swept):
    text = (swept / "report.html").read_text()
    assert (
        "Of 13 settings, u/|L-A| (DeepSeek) with u 0.01, learning rate 0.001 has the lowest "
        "validation loss" in text
    )
    assert (
        "(5.0050); the best of the 3 schemes lie within 0.1950, and the most even of them is"
        in text
    )
    assert (
        "better may lie beyond: learning rate of u/|L-A| (DeepSeek); u and learning rate of "
        "auxiliary loss." in text
    )
    assert " Trials failed: 1." in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>alert" not in text


def row_of(scheme, losses):
    values = {str(seed): loss for seed, loss in enumerate(losses)}
    figures = {key: OverSeeds.of_values(values) for key in ("validation_loss", "imbalance")}
    return SettingRow(scheme, scheme, {"balancer": scheme}, len(losses), len(losses), figures)


def answer_about(*rows):
    best = sorted(rows, key=lambda row: row.loss)
    return sweep_answer(SweepTable(best, best, [], []))


def test_no_scheme_wins_inside_the_noise():
    """The lowest mean is named; that it is lower than another's best only where seeds say so."""
    level = row_of("level", [5.01, 4.98, 5.02, 5.00])
    low = row_of("low", [4.99, 5.00, 5.00, 5.01])
    high = row_of("high", [5.19, 5.20, 5.20, 5.21])
    assert "not known to be below the best of level." in answer_about(low, level, high)
    said = answer_about(low, high)
    assert "low has the lowest validation loss" in said
    assert said.endswith("Paired by seed it is significantly below each other scheme's best.")
    # the same difference without enough seeds, and none to compare with
    assert "not known" in answer_about(row_of("a", [1.0, 1.2]), row_of("b", [1.1, 1.4]))
    assert "paired" not in answer_about(low).lower()
    assert "One seed" in answer_about(row_of("a", [1.0]), row_of("b", [2.0]))


def test_each_scheme_has_its_best(swept):
    best = {row.scheme: row.settings for row in load_sweep(swept).table.best}
    assert best["deepseek"] == {"balancer": "deepseek", "update_rate": 1e-2, "learning_rate": 1e-3}
    assert best["aux"] == {"balancer": "aux", "update_rate": 1e-1, "learning_rate": 1e-3}


def test_figures_show_the_best_of_the_rest(swept):
    rows = [row for row in load_sweep(swept).table.with_loss if row.scheme == "aux"]
    chosen = best_by_rate(rows)
    assert list(chosen) == [1e-3, 1e-2, 1e-1]
    assert {row.settings["learning_rate"] for row in chosen.values()} == {1e-3}
    told = list(csv.DictReader((swept / "figures/loss_by_rate.csv").open()))
    assert {row["scheme"] for row in told} == {
        "u/|L-A| (DeepSeek)",
        "auxiliary loss",
        "no balancing",
    }
    assert float(
        next(row for row in told if row["scheme"] == "auxiliary loss")["validation_loss"]
    ) == pytest.approx(5.104)
    assert len(list(csv.DictReader((swept / "figures/settings.csv").open()))) == 13


def test_a_sweep_without_a_table_is_told(tmp_path):
    enter_folder(tmp_path, Grid("x", {}, [{"seed": [0]}]).trials(tmp_path))
    with pytest.raises(ValueError, match="run the same `equipoise sweep` again"):
        report(tmp_path)


def test_nothing_finished_has_a_page(tmp_path):
    enter_folder(tmp_path, Grid("x", {}, [{"seed": [0]}]).trials(tmp_path))
    write_ranking(tmp_path)
    assert (
        "No setting has finished in full, so there is no best one. Trials not finished: 1."
        in report(tmp_path).read_text()
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_in_a_browser(opened, swept, width):
    page, errors = opened(swept / "report.html", width=width)
    assert errors == []
    assert page.locator(".js-plotly-plot").count() == 2
    assert page.evaluate("() => document.getElementById('loss_by_rate').data.length") == 3
    assert page.locator("#settings tbody tr").count() == 13
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
