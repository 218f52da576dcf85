"""What an evaluation says, and how far chance moved it."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.routing import idle_share, metrics
from equipoise.training.data.batches import validation_batches
from equipoise.training.data.corpus import prepare_corpus
from equipoise.training.evaluation import (
    bootstrap_loads,
    combine_idle_shares,
    device_idle_share,
    loads_by_sequence,
    summarise_training,
)
from equipoise.training.ranks import World
from equipoise.training.trainer import Trainer
from tests.training.micro import small_config

ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def two_natures(texts):
    """A model, and a validation split whose second half uses other words than its first."""
    config = small_config(texts, model={"num_experts": 8}, validation_sequences=0)
    corpus = prepare_corpus(config.data, vocab_size=300)
    rng = np.random.default_rng(0)
    halves = [rng.integers(low, low + 2, 16 * 64) for low in (0, 150)]
    tokens = np.concatenate([*halves, [0]]).astype(np.uint16)
    return config, dataclasses.replace(corpus, validation=tokens)


def level(config, corpus, **changes):
    trainer = Trainer(dataclasses.replace(config, **changes), corpus, ALONE)
    for layer in trainer.net.moe_layers.values():
        layer.router.weight.data.mul_(100)  # words decide
    return np.mean(trainer.evaluate().imbalance)


def test_few_windows_stand_for_the_whole_split(two_natures):
    """The first ones alone give another answer: what the comparison once measured."""
    config, corpus = two_natures
    whole, few = level(config, corpus), level(config, corpus, validation_sequences=16)
    first = dataclasses.replace(corpus, validation=corpus.validation[: 16 * 16 + 1])
    assert few == pytest.approx(whole, rel=0.15)
    assert level(config, first) > 1.3 * whole


def test_measuring_takes_batches_from_all_over(two_natures):
    config, corpus = two_natures
    batches = list(validation_batches(corpus.validation, 16, config.batch_size, 8))
    words = torch.cat([tokens for tokens, _ in batches])
    assert len(batches) == 2
    assert ((words < 100).float().mean() - 0.5).abs() < 0.1


def test_loads_of_sequences_add_up():
    scores = torch.rand(6, 32, 8)
    routing = equipoise.route(scores.flatten(0, 1), 2)
    apart = loads_by_sequence([routing, routing], 6, 8)
    assert apart.shape == (6, 2, 8)
    assert torch.equal(apart.sum(0)[1], routing.loads)
    assert torch.equal(apart[3, 0], equipoise.route(scores[3], 2).loads)


def sequences(rng, number, popularity):
    """Loads (N, 1, E) of sequences of 64 tokens. With a smaller `popularity` the tokens of a
    sequence agree more.
    """
    taste = rng.dirichlet(popularity, size=number)
    return np.stack([rng.multinomial(64, each) for each in taste])[:, None]


def imbalances(sets):
    return [float(metrics(torch.from_numpy(each.sum((0, 1))))["imbalance"]) for each in sets]


@pytest.mark.parametrize("sameness", [0.5, 5.0])
def test_chance_is_what_fresh_sequences_show(sameness):
    """Against Monte Carlo: many validation sets, each with sequences of its own."""
    rng = np.random.default_rng(1)
    even = [sequences(rng, 100, np.full(8, sameness)) for _ in range(400)]
    floors = [bootstrap_loads(each, seed=n)[1] for n, each in enumerate(even[:60])]
    assert np.mean(floors) == pytest.approx(
        np.mean(imbalances(even)), rel=0.05
    )  # all are as popular: nothing but chance
    uneven = [
        sequences(rng, 100, sameness * np.array([3, 3, 2, 2, 1, 1, 1, 1])) for _ in range(400)
    ]
    errors = [bootstrap_loads(each, seed=n)[0] for n, each in enumerate(uneven[:60])]
    assert np.mean(errors) == pytest.approx(np.std(imbalances(uneven)), rel=0.1)


def test_independent_tokens_have_the_known_floor():
    rng = np.random.default_rng(2)
    loads = rng.multinomial(64, np.full(8, 1 / 8), size=200)[:, None]
    assert bootstrap_loads(loads)[1] == pytest.approx(
        (2 / np.pi * (1 - 1 / 8) / (64 * 200 / 8)) ** 0.5, rel=0.15
    )


def test_one_sequence_says_nothing_of_chance():
    assert bootstrap_loads(np.ones((1, 2, 8))) == (None, None)
    assert bootstrap_loads(np.ones((5, 0, 8))) == (None, None)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 50), min_size=7, max_size=7), min_size=1, max_size=6))
def test_idle_shares_come_together(rows):
    forwards = torch.tensor([[*row, 400 - sum(row)] for row in rows])
    apart = [device_idle_share(row.unsqueeze(0)) for row in forwards]
    assert combine_idle_shares(apart) == pytest.approx(float(idle_share(forwards, 8)))
    assert device_idle_share(torch.ones(1, 12)) is None
    assert combine_idle_shares([None]) is None


def test_a_training_is_reported_in_parts():
    steps = [{"imbalance": float(n), "idle_share": 0.5 if n < 20 else 0.0} for n in range(100)]
    found = summarise_training(steps)
    assert found["training_imbalance"] == pytest.approx(49.5)
    assert found["early_imbalance"] == pytest.approx(9.5)
    assert found["late_imbalance"] == pytest.approx(87.0)
    assert found["early_idle"] == 0.5
    assert found["late_idle"] == 0.0
    assert found["training_idle"] == pytest.approx(1 - 100 / 120)
