"""A training's own trace agrees with itself, whatever balances it and however it computes."""

from pathlib import Path

import pytest

import equipoise
from equipoise.balancing import method_specs
from equipoise.theorems.contradictions import AGREEMENT, agreement_verdict
from equipoise.theorems.verify import whole_records
from equipoise.trace import Trace
from equipoise.training import train


def agreement(config):
    train(config)
    trace = Trace.open(Path(config.out) / "trace")
    kept = whole_records(trace, 100)
    assert kept
    return agreement_verdict(trace, kept)


FOLLOWING = [spec.name for spec in method_specs() if spec.within_sequences] + ["threshold"]


@pytest.mark.parametrize("name", sorted(set(equipoise.balancers()) - set(FOLLOWING)))
def test_every_balancer(micro, name):
    assert agreement(micro(steps=6, balancer=name, trace_batches=6)) is None, AGREEMENT


@pytest.mark.parametrize("name", FOLLOWING)
def test_loads_that_scores_and_shift_do_not_explain_are_of_no_whole_batch(micro, name):
    config = micro(steps=6, balancer=name, trace_batches=6)
    train(config)
    trace = Trace.open(Path(config.out) / "trace")
    assert not whole_records(trace, 100)
    assert agreement_verdict(trace, []) is None


@pytest.mark.parametrize("changes", [{"precision": "bfloat16"}, {"look_ahead": 2}], ids=str)
def test_other_ways_to_compute(micro, changes):
    assert agreement(micro(steps=6, trace_batches=6, **changes)) is None
