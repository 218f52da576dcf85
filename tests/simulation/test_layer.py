"""One layer: what is counted, against tokens that are routed one by one; what a pool leaves out."""

import dataclasses

import numpy as np
import pytest
import torch

from equipoise.arena.cells import Cell
from equipoise.costs.step_time import time_of_step
from equipoise.routing import route
from equipoise.simulation.layer import (
    draw_tokens,
    drawn_loads,
    fullest_over_mean,
    repeat_tally,
    simulate_layer,
)
from equipoise.simulation.settings import layer_stream, make_settings
from tests.simulation.conftest import CLUSTER, OPTIONS, SMALL


def settings(**changes):
    times = time_of_step(SMALL, CLUSTER, expert_parallel=8)
    chosen = {name: OPTIONS[name] for name in OPTIONS if name != "expert_parallel"}
    more = {"stream": "e384", "rates": None, "seed": 0, "placement": None}
    return make_settings(times, **{**chosen, **more, **changes})


def slow_layer(made, layer):
    """Every drawn token is a row of its own, and a tally is that of rows."""
    stream = layer_stream(made, layer)
    rules = [Cell(stream, *each).make_balancer() for each in made.balancers]
    found = np.zeros((len(rules), made.steps))
    for step in range(made.steps):
        scores = stream.batch(step).scores
        rows = scores.repeat_interleave(draw_tokens(made, layer, step), 0)
        for place, rule in enumerate(rules):
            counted = [0] * made.group
            for experts in rule.route(rows).experts.tolist():
                for expert in experts:
                    counted[expert * made.group // made.num_experts] += 1
            found[place, step] = max(counted) * made.group / sum(counted)
            whole = scores.repeat(made.step_tokens // len(scores), 1)
            rule.update(rule.tally(whole, rule.route(whole)))
    return found


def test_a_layer_is_that_of_tokens_routed_one_by_one():
    load = dataclasses.replace(SMALL, tokens=2048)
    times = time_of_step(load, CLUSTER, expert_parallel=8)
    made = dataclasses.replace(settings(steps=6), step_tokens=times.workload.tokens)
    np.testing.assert_array_equal(simulate_layer(made, 1), slow_layer(made, 1))


def test_loads_of_drawn_tokens():
    """And a choice that an expert-choice router left empty counts nowhere."""
    routing = route(torch.tensor([[0.9, 0.5, 0.1], [0.1, 0.2, 0.7]]), 2)
    assert drawn_loads(routing, torch.tensor([3, 5])).tolist() == [3, 8, 5]
    empty = routing._replace(experts=torch.tensor([[0, 3], [2, 1]]))
    assert drawn_loads(empty, torch.tensor([3, 5])).tolist() == [3, 5, 5]


def test_a_forward_has_all_its_tokens():
    made = settings()
    drawn = draw_tokens(made, 2, 5)
    assert int(drawn.sum()) == made.forward_tokens == 8 * 256
    assert torch.equal(drawn, draw_tokens(made, 2, 5))
    assert not torch.equal(drawn, draw_tokens(made, 2, 6))
    assert not torch.equal(drawn, draw_tokens(made, 1, 5))


@pytest.mark.parametrize("name", ["deepseek", "quantile", "adagrad"])
def test_a_repeated_tally_is_that_of_the_repeated_batch(name):
    stream = layer_stream(settings(), 0)
    scores, rule = stream.batch(0).scores, Cell(stream, name).make_balancer()
    three = repeat_tally(rule.tally(scores, rule.route(scores)), 3)
    rows = scores.repeat(3, 1)
    whole = rule.tally(rows, rule.route(rows))
    assert torch.equal(three.loads, whole.loads)
    assert all(torch.equal(three.parts[part], whole.parts[part]) for part in whole.parts)


def test_the_fullest_device_by_hand():
    made = dataclasses.replace(settings(), num_experts=4, group=2)
    loads = torch.tensor([30, 10, 5, 15])
    assert fullest_over_mean(loads, made) == pytest.approx(40 / 30)
    apart = dataclasses.replace(made, placement=((0, 1, 0, 1), (0, 0, 1, 1)))
    assert fullest_over_mean(loads, apart) == pytest.approx(35 / 30)
    assert fullest_over_mean(loads, apart, layer=1) == pytest.approx(40 / 30)
    assert fullest_over_mean(loads, apart, layer=2) == pytest.approx(35 / 30)
    assert fullest_over_mean(torch.zeros(4, dtype=torch.int64), made) == 1


def test_layers_and_seeds_differ_and_repeat():
    made = settings(balancers=["none"])
    assert np.array_equal(simulate_layer(made, 0), simulate_layer(made, 0))
    assert not np.array_equal(simulate_layer(made, 0), simulate_layer(made, 1))
    other = dataclasses.replace(made, seed=1)
    assert not np.array_equal(simulate_layer(made, 0), simulate_layer(other, 0))


def test_a_rule_that_diverges_has_no_more_figures():
    made = settings(balancers=["proportional", "none"], rates=[1e38], steps=8)
    found = simulate_layer(made, 0)
    assert np.isfinite(found[1]).all()
    assert np.isfinite(found[0, 0])
    assert np.isnan(found[0, -1])


def test_a_pool_stands_for_tokens_of_their_own():
    """The full simulation draws every forward anew and learns from its chance, too, so that rules
    near chance lose a little more there: 6% here, of 8,192 tokens.
    """
    names = ["none", "deepseek", "proportional", "quantile"]
    pooled = settings(balancers=names, steps=60, device_tokens=1024, pool=2048)
    full = dataclasses.replace(pooled, pool=0)
    mean = [
        np.mean([simulate_layer(made, layer) - 1 for layer in range(2)], axis=0).mean(1)
        for made in (full, pooled)
    ]
    np.testing.assert_allclose(mean[1], mean[0], rtol=0.08)
