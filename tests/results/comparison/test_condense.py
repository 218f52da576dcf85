"""What is kept of a run for its page: the same bins for all, columns at even distances."""

import json

import numpy as np
import pytest

from equipoise.results.comparison.condense import (
    condense_histograms,
    condense_trace,
    even_steps,
    rebin,
)
from equipoise.trace import TraceWriter


def test_columns_are_even():
    # a step of a whole batch between others
    assert even_steps([6, 12, 18, 24, 30, 36, 37, 42]) == [6, 12, 18, 24, 30, 36, 42]
    assert even_steps([5]) == [5]
    assert even_steps([]) == []
    # no common distance: nothing is left out
    assert even_steps([1, 2, 4, 8, 16, 32]) == [1, 2, 4, 8, 16, 32]
    thinned = even_steps(list(range(1, 1001)), 150)
    assert len(thinned) <= 150
    assert len(set(np.diff(thinned))) == 1


def test_rebinning_keeps_the_sum():
    rng = np.random.default_rng(0)
    shares, own = rng.random(30), np.linspace(0, 0.7, 31)
    edges = np.linspace(0, 1, 17)
    assert rebin(shares, own, edges).sum() == pytest.approx(shares.sum())
    # nested bins: exactly the sums
    coarse = rebin(shares, own, own[::3])
    assert coarse == pytest.approx(shares.reshape(10, 3).sum(1))


def histograms(folder, reach):
    """The first step is the same for all; the second reaches as far as said."""
    (folder / "histograms").mkdir(parents=True)
    for step, to in ((1, 0.13), (10, reach)):
        counts = np.arange(1, 129).tolist()
        layer = {"scores": {"from": 0.0, "to": to, "counts": counts}, "shift": [0.0, 0.1 * to]}
        content = {"step": step, "layers": {"a": layer}}
        (folder / "histograms" / f"step-{step:08d}.json").write_text(json.dumps(content))
    return condense_histograms(folder)


def test_bins_of_two_runs_fit_into_each_other(tmp_path):
    near, far = histograms(tmp_path / "near", 0.3), histograms(tmp_path / "far", 0.9)
    widths = [each["scores"]["x"][1] - each["scores"]["x"][0] for each in (near, far)]
    assert np.log2(widths) == pytest.approx(np.round(np.log2(widths)), abs=1e-4)
    factor = round(widths[1] / widths[0])
    fine, coarse = (np.array(each["scores"]["frames"][0]["y"]) for each in (near, far))
    fine = np.append(fine, np.zeros(-len(fine) % factor)).reshape(-1, factor).sum(1)
    assert coarse[: len(fine)] == pytest.approx(fine, abs=1e-4)


@pytest.mark.parametrize("target", [None, (1.0, 1.0, 2.0)])
def test_loads_are_relative_to_their_target(tmp_path, target):
    with TraceWriter(tmp_path / "trace", top_k=2, layers=["a"], target=target) as writer:
        for step in (1, 2, 3):
            shift = np.array([0.0, 0.01 * step, -0.5])
            loads = np.array([4, 4, 8])
            writer.append(step, "a", shift=shift, shift_after=shift, loads=loads)
    kept = condense_trace(tmp_path / "trace")
    [layer] = kept["loads"]
    expected = [75, 75, 150] if target is None else [100, 100, 100]
    assert [row[0] for row in layer["z"]] == expected
    assert layer["shift"][1] == [0.01, 0.02, 0.03]
    # eight tokens, two choices each, of three experts
    share = np.array([2 / 3] * 3) if target is None else np.array([0.5, 0.5, 1.0])
    floor = np.sqrt(2 / np.pi * (1 - share) / (8 * share)).mean()
    assert kept["batch_floor"] == pytest.approx(floor, rel=1e-4)


def test_no_trace_has_no_maps(tmp_path):
    assert condense_trace(tmp_path) == {"loads": []}
