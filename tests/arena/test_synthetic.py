"""Made streams: each follows from its seed and step, and has the statistics its name promises."""

import dataclasses
import hashlib

import numpy as np
import pytest
import torch

from equipoise.arena.streams import catalogue
from equipoise.arena.streams.synthetic import Drift, Dying, Skew, Synthetic, Topics

SIZE = {"num_tokens": 4096, "num_experts": 16, "top_k": 2, "steps": 40}


def made(*parts, **options):
    return Synthetic(name="made", popularity=parts, **{**SIZE, **options})


@pytest.mark.parametrize("name", catalogue.SYNTHETIC)
def test_batches_follow_from_their_step(name):
    stream = dataclasses.replace(catalogue.SYNTHETIC[name], num_tokens=256, steps=3)
    batch = stream.batch(2)
    assert torch.equal(batch.scores, list(stream)[2].scores)
    assert batch.scores.shape == (256, stream.num_experts)
    assert torch.isfinite(batch.scores).all()
    assert not torch.equal(batch.scores, dataclasses.replace(stream, seed=1).batch(2).scores)


def test_uniform_scores_are_uniform():
    scores = made(Skew(0.0), law="uniform").batch(0).scores
    assert float(scores.mean()) == pytest.approx(1 / 2, abs=0.01)
    assert float(scores.var()) == pytest.approx(1 / 12, rel=0.02)


def test_beta_scores_have_their_mean():
    """Beta(2, 4): mean 1/3, variance 2/63."""
    scores = made(Skew(0.0), law="beta").batch(0).scores
    assert float(scores.mean()) == pytest.approx(1 / 3, abs=0.005)
    assert float(scores.var()) == pytest.approx(2 / 63, rel=0.03)


def test_drift_is_a_random_walk():
    stream = made(Drift(0.1), num_experts=512, steps=101)
    moved = stream.popularity_at(100) - stream.popularity_at(36)
    assert moved.std() == pytest.approx(0.1 * 8, rel=0.1)
    assert not stream.popularity_at(0).any()


def test_a_dying_expert_is_chosen_less():
    stream = made(Dying(0.2))
    chosen = [int((stream.batch(step).scores.argmax(1) == 0).sum()) for step in (0, 39)]
    assert chosen[1] < 0.05 * chosen[0]


def test_topics_come_round():
    stream = made(Topics(period=20))
    np.testing.assert_allclose(stream.popularity_at(3), stream.popularity_at(23), atol=1e-12)
    np.testing.assert_allclose(stream.popularity_at(3), -stream.popularity_at(13), atol=1e-12)


def test_tokens_of_a_sequence_agree():
    """Logits have variance 1 + sequence_offset^2, of which sequence_offset^2 is shared."""
    logits = (
        made(sequence_offset=1.0, block=64, score="sigmoid")
        .batch(0)
        .scores.logit()
        .unflatten(0, (-1, 64))
    )
    assert float(logits.mean(1).var()) == pytest.approx(1 + 1 / 64, rel=0.1)
    assert float(logits.var(1).mean()) == pytest.approx(1.0, rel=0.05)


def test_heavy_tails_are_heavy():
    """P(|t| > 10) with two degrees of freedom is 0.0099; a normal has none."""
    logits = made(Skew(0.0), law="heavy", score="sigmoid").batch(0).scores.double().logit()
    assert float((logits.abs() > 5).double().mean()) == pytest.approx(0.0099, rel=0.1)


def test_padding_is_a_share():
    batch = made(padding=0.2, block=64).batch(0)
    assert float(batch.mask.float().mean()) == pytest.approx(0.2, abs=0.05)
    assert (batch.scores[batch.mask].argmax(1) == 0).all()


def test_a_swap_moves_two():
    stream = catalogue.SYNTHETIC["swap"]
    moved = stream.popularity_at(stream.steps - 1) - stream.popularity_at(0)
    assert (moved != 0).sum() == 2
    assert moved.sum() == pytest.approx(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"law": "gausian"}, "no law"),
        ({"sequence_offset": 1.0}, "need sequences"),
        ({"padding": 0.7, "block": 64}, "below a half"),
    ],
)
def test_mistakes_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_a_wrong_name_is_told_with_near_ones():
    with pytest.raises(ValueError, match="did you mean 'drift'"):
        catalogue.find_streams("drft")


@pytest.mark.parametrize(
    ("name", "digest"),
    [("drift", "a60c214a62a9"), ("sequences", "7b7827789664"), ("padding", "d6fc36f38902")],
)
def test_identities_stay_those_of_0_1(name, digest):
    """Cells are kept under names that follow from them: others would all be run again."""
    identity = catalogue.SYNTHETIC[name].identity
    assert hashlib.sha256(identity.encode()).hexdigest()[:12] == digest


@pytest.mark.parametrize("name", [name for name in catalogue.SYNTHETIC if name.startswith("thin")])
def test_thin_streams_are_thin(name):
    """4 to 64 choices an expert, 4 to 16 experts, and steps enough for them to add up."""
    stream = catalogue.SYNTHETIC[name]
    assert 4 <= stream.num_experts <= 16
    assert 4 <= stream.num_tokens * stream.top_k / stream.num_experts <= 64
    assert stream.steps >= 1000
