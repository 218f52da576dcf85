"""tune chooses on one half, judges on the other, and says when it cannot tell."""

import dataclasses

import numpy as np
import pytest

from equipoise.arena.tune import recommend, tune
from equipoise.results.arena import CellResult
from equipoise.trace import TraceWriter


def result(name, rate, level, seed, noise=0.01, steps=120):
    series = level + noise * np.random.default_rng(seed).standard_normal(steps)
    figures = dict.fromkeys(
        ("affinity_kept", "switched", "idle_share", "steady_max_violation", "lag_one"), 1.0
    )
    return CellResult(
        stream="s",
        balancer=name,
        rate=rate,
        steady_imbalance=level,
        over_floor=1.0,
        steps_to_floor=0,
        floor=0.02,
        imbalance=series.tolist(),
        max_violation=series.tolist(),
        **figures,
    )


def test_a_clear_winner_is_told():
    advice = recommend(
        [
            result("deepseek", 1e-3, 0.2, 0),
            result("deepseek", 1e-2, 0.06, 1),
            result("quantile", 1.0, 0.05, 2),
        ]
    )
    assert (advice.balancer, advice.next_balancer, advice.next_rate) == (
        "quantile",
        "deepseek",
        1e-2,
    )
    assert not advice.within_noise
    assert advice.low < 0.2 < advice.high
    assert advice.recommended
    assert advice.paragraph().startswith("For s: quantile at rate 1. ")
    assert "That is more than noise" in advice.paragraph()


@pytest.mark.parametrize("order", [("deepseek", "quantile"), ("quantile", "deepseek")])
def test_a_rule_that_is_worse_where_it_is_judged_is_not_recommended(order):
    """The first is better on the half it is chosen on, and clearly worse on the other half."""
    first, second = (result(name, 1e-3, 0.5, n) for n, name in enumerate(order))
    steady = len(first.imbalance) // 3
    low, high = [0.1] * (steady // 2), [0.2] * (steady - steady // 2)
    first = dataclasses.replace(first, imbalance=first.imbalance[:-steady] + low + high)
    second = dataclasses.replace(second, imbalance=second.imbalance[:-steady] + [0.15] * steady)
    found = recommend([first, second])
    assert (found.balancer, found.recommended, found.within_noise) == (order[0], False, False)
    assert found.high < 0
    assert found.paragraph().startswith("For s: no recommendation.")
    assert f"{second.balancer} on those it was judged on" in found.paragraph()


def test_noise_is_called_noise():
    """Two rules that are alike: at most a few of twenty pairs may look different by chance."""
    pairs = [
        (result("deepseek", 1e-3, 0.05, 2 * n), result("quantile", 1.0, 0.05, 2 * n + 1))
        for n in range(20)
    ]
    assert sum(recommend(pair).within_noise for pair in pairs) >= 14
    unsure = next(a for a in map(recommend, pairs) if a.within_noise)
    assert not unsure.recommended
    assert "no recommendation" in unsure.paragraph()
    assert "within noise" in unsure.paragraph()


def test_the_last_rate_tried_is_told():
    tried = [
        result("deepseek", rate, level, n)
        for n, (rate, level) in enumerate([(1e-3, 0.2), (1e-2, 0.05)])
    ]
    assert "try --rates beyond" in recommend([*tried, result("quantile", 1.0, 0.1, 9)]).paragraph()


def test_too_little_to_tell_is_refused():
    with pytest.raises(ValueError, match="at least two"):
        tune("drift", balancers=["deepseek"])
    with pytest.raises(ValueError, match="too few to tell"):
        tune("drift", steps=5)


def test_nothing_to_choose_between_is_noise():
    """Where every token takes every expert nothing is left over, and nothing is divided by it."""
    even = [
        dataclasses.replace(result(name, None, 0.0, 0), imbalance=[0.0] * 30, floor=0.0)
        for name in ("none", "curvature")
    ]
    advice = recommend(even)
    assert (advice.over_floor, advice.difference, advice.within_noise) == (None, 0.0, True)
    assert "an imbalance of 0.0000, and kept" in advice.paragraph()


def test_the_layers_it_offers_are_names_it_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scores = np.random.default_rng(0).random((24, 32, 4), dtype=np.float32)
    zeros, even = np.zeros(4, np.float32), np.full(4, 16)
    names = ["blocks.0", "blocks.1"]
    with TraceWriter("scores/ds", top_k=2, layers=names, about={"gate": "sigmoid"}) as writer:
        for step, batch in enumerate(scores):
            for layer in names:
                writer.append(
                    step,
                    layer,
                    shift=zeros,
                    shift_after=zeros,
                    loads=even,
                    scores=batch,
                    whole=True,
                )
    with pytest.raises(ValueError, match="has several layers") as refused:
        tune("scores/ds")
    offered = str(refused.value).partition("choose one of ")[2].split(", ")
    assert offered == ["scores/ds:blocks.0", "scores/ds:blocks.1"]
    advice = tune(offered[1], balancers=["deepseek", "quantile"], rates=[1e-3], workers=1)
    assert advice.stream.endswith("ds:blocks.1")
