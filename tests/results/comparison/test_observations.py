"""The paper's observations, judged on rows made for the purpose."""

import pytest

from equipoise.results.comparison.observations import (
    NOT_REPRODUCED,
    PAPER_SCHEMES,
    REPRODUCED,
    UNDECIDED,
    observations_lines,
    observations_markdown,
    observe,
)
from equipoise.results.comparison.rows import SchemeRow
from equipoise.results.over_seeds import OverSeeds
from equipoise.results.sweep import SettingRow, load_search, search_rows

PAPER = {
    "aux": (3.690, 0.070),
    "deepseek": (3.654, 0.084),
    "inverse": (3.682, 0.080),
    "inverse_sqrt": (3.646, 0.090),
}


def rows(levels=PAPER, noise=1e-4, means=(0.1, 0.0, 0.0), diameter=0.5):
    """Five seeds with a large offset of their own, and a small noise around each scheme's level."""
    made = []
    for n, (name, (loss, imbalance)) in enumerate(levels.items()):
        seeds = [(str(seed), seed + noise * ((seed * 7 + n * 3) % 5 - 2)) for seed in range(5)]
        values = {
            "validation_loss": {seed: loss + offset for seed, offset in seeds},
            "imbalance": {seed: imbalance + offset for seed, offset in seeds},
            "shift_diameter": {seed: diameter for seed, _ in seeds},
        }
        if name != "aux":
            mean = dict(zip(("deepseek", "inverse", "inverse_sqrt"), means))[name]
            values["shift_mean"] = {seed: mean * (1 + int(seed) / 10) for seed, _ in seeds}
        figures = {key: OverSeeds.of_values(found) for key, found in values.items()}
        made.append(SchemeRow({"name": name, "label": name}, 5, figures=figures))
    return made


def search(losses):
    rows = []
    for n, (rate, loss) in enumerate(losses.items()):
        values = {str(seed): loss + seed + 1e-4 * ((seed + n) % 3) for seed in range(3)}
        figures = {"validation_loss": OverSeeds.of_values(values)}
        settings = {"balancer": "deepseek", "update_rate": rate}
        rows.append(SettingRow("deepseek", "deepseek", settings, 3, 3, figures))
    return rows


def verdicts(*args, **options):
    return {each.number: each.verdict for each in observe(rows(*args, **options))}


def test_the_papers_own_order_is_reproduced():
    found = verdicts()
    assert [found[n] for n in (2, 3, 4, 5, 6)] == [REPRODUCED] * 5
    assert found[7] == UNDECIDED  # no figure to compare with


def test_another_order_is_not():
    swapped = {**PAPER, "aux": PAPER["inverse_sqrt"], "inverse_sqrt": PAPER["aux"]}
    found = verdicts(swapped)
    assert [found[n] for n in (2, 3, 4)] == [NOT_REPRODUCED] * 3


def test_noise_cannot_be_told_from_order():
    found = verdicts(noise=0.1)
    assert [found[n] for n in (2, 3, 4)] == [UNDECIDED] * 3


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ((0.1, 0.0, 0.0), REPRODUCED),
        ((-0.1, 0.0, 0.0), NOT_REPRODUCED),
        ((0.1, 0.05, 0.0), NOT_REPRODUCED),
    ],
)
def test_drift_and_centring(means, verdict):
    assert verdicts(means=means)[5] == verdict


def test_a_wide_shift_refutes():
    assert verdicts(diameter=1.2)[6] == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ({1e-4: 3.7, 1e-3: 3.6, 1e-2: 3.8}, REPRODUCED),
        ({1e-4: 3.5, 1e-3: 3.6, 1e-2: 3.8}, NOT_REPRODUCED),
        ({1e-4: 3.6, 1e-3: 3.6, 1e-2: 3.8}, UNDECIDED),
        ({1e-4: 3.6, 1e-2: 3.8}, UNDECIDED),
    ],
)
def test_the_best_rate_is_judged_by_a_search(losses, verdict):
    assert observe(rows(), search(losses))[0].verdict == verdict


def test_missing_schemes_are_named():
    found = observe(rows()[:2])
    assert found[1].verdict == UNDECIDED
    assert "no finished run of inverse, inverse_sqrt" in found[1].evidence
    assert len(observations_lines(found).splitlines()) == 15
    assert observations_markdown(found).count("\n") == 8


def test_other_files_are_refused():
    with pytest.raises(ValueError, match=r"a.json is not the table.json"):
        search_rows([], "a.json")
    assert set(PAPER_SCHEMES) == set(PAPER)


def test_a_damaged_search_is_named(tmp_path):
    (tmp_path / "table.json").write_text("{")
    with pytest.raises(ValueError, match=r"table.json is damaged: it is not JSON"):
        load_search(tmp_path / "table.json")
