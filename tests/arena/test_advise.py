"""advise: its evidence against what streams were made with, its forecasts against replays."""

import dataclasses
import json
import math

import numpy as np
import pytest

import equipoise
from equipoise.arena.advice.advise import _advise_rule
from equipoise.arena.advice.evidence import (
    _drift_of,
    _mean_above_0,
    laplacian_of,
    read_layer,
    tie_weights,
)
from equipoise.arena.advice.prediction import RULES, forecast
from equipoise.arena.streams.catalogue import SYNTHETIC
from equipoise.cli import main
from equipoise.optimum.topk import top_k_loads
from equipoise.report.advice.page import write_advice_page

SMALL = {"num_tokens": 2048, "num_experts": 16, "top_k": 2, "steps": 60, "seed": 3}


def small(name):
    stream = dataclasses.replace(SYNTHETIC[name], **SMALL)
    return stream, [np.ascontiguousarray(batch.scores.numpy()) for batch in stream]


def evidence(name, steps=range(0, 60, 6), **options):
    stream, batches = small(name)
    taken = [batches[step] for step in steps]
    return read_layer(name, taken, list(steps), stream.top_k, block=stream.block, **options)


@pytest.fixture(scope="module")
def drifting():
    return evidence("drift")


def replay(batches, top_k, rule, rate):
    tokens, experts = batches[0].shape
    load, shift, found = top_k * tokens / experts, np.zeros(experts, np.float32), []
    for n, scores in enumerate(batches, 1):
        gap = load - top_k_loads(scores, shift, top_k)
        found.append(np.abs(gap).mean() / load)
        size = {"deepseek": np.sign(gap), "proportional": gap / load}.get(rule)
        size = gap / tokens / n ** (1 if rule == "inverse" else 0.5) if size is None else size
        shift = (shift + rate * size).astype(np.float32)
    return float(np.mean(found[-20:]))


RATES = {"deepseek": 3e-3, "proportional": 2e-2, "inverse": 1.0, "inverse_sqrt": 0.5}


@pytest.mark.parametrize("name", ["softmax", "drift", "sequences"])
@pytest.mark.parametrize("rule", RULES)
def test_forecasts_are_what_replays_measure(rule, name):
    _, batches = small(name)
    found = forecast(evidence(name), rule, RATES[rule], 60).steady
    assert found == pytest.approx(replay(batches, 2, rule, RATES[rule]), rel=0.15)


def test_steady_state_of_the_sign_rule_is_least_at_the_drift(drifting):
    """v = (u^2 + q^2) / (2 u g), the first order of theory: least at u = q."""
    q = float(np.sqrt((drifting.drift**2).mean()))
    levels = {u: forecast(drifting, "deepseek", u, 4000).steady for u in (q / 4, q, 4 * q)}
    assert min(levels, key=levels.get) == q


def test_ties_have_the_density_of_the_load_changes():
    """The Hessian from margins, against loads counted on either side (errata 19)."""
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(6), 200_000)
    weights = tie_weights(scores, 2)
    direction = np.array([0.01, -0.01, 0, 0, 0, 0])
    ahead, back = (top_k_loads(scores, sign * direction, 2) for sign in (1, -1))
    changed = (ahead - back) / 2 / len(scores)
    # margins of a fifth of the tokens are looked at, over which the density falls
    assert changed @ direction == pytest.approx(
        direction @ laplacian_of(weights) @ direction, rel=0.1
    )


def test_ties_that_the_optimum_itself_makes_are_not_counted(monkeypatch):
    """For uniform scores w_kl is 1 / (E - 1), so that every s_k is 1. With the E - 1 tokens that an
    optimum ties it would be more, and what optima scatter by would look like drift.
    """
    batches = list(np.random.default_rng(0).random((4, 2048, 128), dtype=np.float32))
    found = read_layer("uniform", batches, range(4), 8)
    assert found.weights.sum(1).mean() == pytest.approx(1, abs=0.1)
    assert found.drift_over_chance < 0.1
    monkeypatch.setattr("equipoise.arena.advice.evidence.TIED_BELOW", -1.0)
    with_ties = read_layer("uniform", batches, range(4), 8)
    assert with_ties.weights.sum(1).mean() > 1.2
    assert with_ties.drift_over_chance > 0.5


@pytest.mark.parametrize("tokens", [160, 40])
def test_few_tokens_still_have_a_density(tokens):
    batches = np.random.default_rng(0).random((3, tokens, 128), dtype=np.float32)
    found = read_layer("few", list(batches), range(3), 8)
    assert 0.2 < found.weights.sum(1).mean() < 5


def test_drift_is_the_streams_own():
    """popularity walks by 0.02 in logits; p* then walks by that much of each expert's scale."""
    moving, still = evidence("drift"), evidence("softmax")
    assert moving.drift_over_chance > 3 * still.drift_over_chance
    assert still.rho.max() == pytest.approx(0, abs=1e-3)


def test_one_expert_that_moves_has_its_own_drift():
    found = evidence("dying")
    assert found.rho[0] > 5 * np.median(found.rho)


def made_drift(level, step, batches=40, seed=0):
    """rho and seen_rho of optima that scatter by `level` beyond chance and walk by `step`."""
    rng, E = np.random.default_rng(seed), 32
    weights = (np.ones((E, E)) - np.eye(E)) / (E - 1)
    covariance = np.eye(E) - 1 / E
    inverse = np.linalg.pinv(laplacian_of(weights))
    chance = np.sqrt(np.diag(inverse @ covariance @ inverse) / 1000)
    walk = step * rng.normal(size=(batches, E)).cumsum(0)
    optima = walk + (1 + level) * chance * rng.normal(size=(batches, E))
    known = optima, np.arange(batches), weights, covariance, 1.0, 1000
    return (
        _drift_of(*known, level=False, unseen=False).mean(),
        _drift_of(*known, level=False, unseen=True).mean(),
        _drift_of(*known, level=True, unseen=False).mean(),
    )


def test_a_scatter_beyond_chance_is_no_drift():
    """Batches of texts differ by more than their sequences show, however near their steps are."""
    most, _, seen = made_drift(level=0.5, step=0.0)
    assert seen < 0.3 * most
    most, _, seen = made_drift(level=0.5, step=0.01)
    assert seen == pytest.approx(0.01, rel=0.3)
    assert most > seen


def test_drift_that_went_unseen_is_allowed_for():
    found = [made_drift(level=-0.2, step=0.0, batches=6, seed=seed) for seed in range(5)]
    assert any(most == 0 for most, _, _ in found)
    assert all(allowed > max(most, 1e-4) for most, allowed, _ in found)
    # where drift is plain there is nothing to allow for
    most, allowed, _ = made_drift(level=0.0, step=0.1)
    assert allowed == pytest.approx(most, rel=0.02)


@pytest.mark.parametrize("value", [-3.0, -0.5, 0.0, 2.0])
def test_the_mean_above_0_is_that_of_a_cut_normal_law(value):
    drawn = np.random.default_rng(0).normal(value, 1.5, 2_000_000)
    assert _mean_above_0(value, 1.5) == pytest.approx(drawn[drawn > 0].mean(), rel=0.02)
    assert _mean_above_0(value, 0.0) == value


def test_what_is_told_is_of_the_drift_that_was_seen():
    still = evidence("softmax")
    assert still.as_seen is still
    found = evidence("sequences")
    assert found.as_seen.rho.tolist() == found.seen_rho.tolist()
    assert found.seen_rho.mean() < found.rho.mean()
    advice = _advise_rule([found], "deepseek", 60)
    told, cautious = (
        forecast(each, "deepseek", advice.rate, 60).steady for each in (found.as_seen, found)
    )
    assert advice.imbalance == told < cautious
    # the rate is the best for the most drift there can be
    assert all(
        forecast(found, "deepseek", factor * advice.rate, 60).steady > 0.999 * cautious
        for factor in (0.7, 1.4)
    )


def test_it_is_said_that_rates_allow_for_more_drift():
    """Else the advice would contradict itself: a smaller rate may have the lower forecast."""
    still = equipoise.advise("uniform", steps=40)
    assert still.allowed_over_chance == still.drift_over_chance
    assert "rates allow for" not in still.paragraph()
    careful = dataclasses.replace(still, drift=0.0, allowed_over_chance=0.25)
    said = "no drift was seen; rates allow for 0.25 times, since 12 batches may show too little"
    assert said in careful.paragraph()


def test_sequences_inflate_the_noise():
    apart, alike = evidence("softmax"), evidence("sequences")
    assert apart.inflation == 1
    assert alike.inflation > 5
    assert alike.floor == pytest.approx(apart.floor * math.sqrt(alike.inflation), rel=0.05)


def test_larger_batches_have_less_noise(drifting):
    large = evidence("drift", tokens=4 * 2048)
    assert large.floor == pytest.approx(drifting.floor / 2)
    assert large.band(1e-3) == drifting.band(1e-3)


def test_one_batch_is_enough_and_shows_no_drift():
    assert not evidence("drift", steps=[0]).rho.any()


def test_longer_trainings_want_smaller_rates():
    still = equipoise.advise("thin-e16", steps=100)
    longer = equipoise.advise("thin-e16", steps=10_000)
    for rule in ("deepseek", "proportional"):
        assert longer.rate_of(rule).rate < still.rate_of(rule).rate
        assert longer.rate_of(rule).imbalance < still.rate_of(rule).imbalance


def test_a_recorded_training_is_read(trained, capsys):
    assert main(["advise", str(trained), "--steps", "50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["balancer"] for each in found["rates"]] == list(RULES)
    for each in found["rates"]:
        assert each["low"] <= each["rate"] <= each["high"]
        assert each["imbalance"] <= each["usual_imbalance"] * 1.001
    assert main(["advise", str(trained), "--steps", "50"]) == 0
    assert "deepseek at rate" in capsys.readouterr().out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trace of three batches of two layers, as a training would leave."""
    folder = tmp_path_factory.mktemp("advise") / "trace"
    _, batches = small("drift")
    with equipoise.TraceWriter(folder, top_k=2, layers=2) as writer:
        for step in (0, 20, 40):
            scores = batches[step]
            loads = top_k_loads(scores, np.zeros(16, np.float32), 2)
            for layer in (0, 1):
                writer.append(
                    step,
                    layer,
                    shift=np.zeros(16, np.float32),
                    shift_after=np.zeros(16, np.float32),
                    loads=loads,
                    scores=scores,
                    whole=True,
                )
    return folder


def test_groups_and_sizes_are_refused():
    with pytest.raises(ValueError, match="theory knows no groups"):
        equipoise.advise("e256-groups")
    with pytest.raises(ValueError, match="steps must be at least 1"):
        equipoise.advise("drift", steps=0)
    with pytest.raises(ValueError, match="nothing is to balance"):
        read_layer("all", [np.random.default_rng(0).random((8, 2))], [0], 2)
    with pytest.raises(ValueError, match="too many tokens are tied"):
        tie_weights(np.ones((8, 4)), 2)
    # an optimum ties 3 tokens of 4 experts: the others' ties are the scores' own, and not left out
    coarse = np.random.default_rng(0).random((100, 4))
    coarse[:40] = 1
    with pytest.raises(ValueError, match="too many tokens are tied"):
        tie_weights(coarse, 2)


def test_the_page_has_the_answer_and_every_rate(tmp_path):
    advice = equipoise.advise("thin-e8", steps=50)
    named = dataclasses.replace(advice, stream="<b>runs</b>")
    path = write_advice_page(named, tmp_path / "advice.html")
    text = path.read_text(encoding="utf-8")
    assert "<b>runs" not in text
    assert "deepseek at rate" in text
    for each in advice.rates:
        assert f"<td>{each.rate:.2g}</td>" in text
        assert len(each.curve) > 10
    sheet = (tmp_path / "figures" / "advice-rates.csv").read_text(encoding="utf-8")
    assert len(sheet.splitlines()) == 1 + sum(len(each.curve) for each in advice.rates)
