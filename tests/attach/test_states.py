"""Counts and forwards move as the table of states.py says."""

import pytest
import torch

import equipoise
from equipoise.attach.count.states import CountState, ForwardPhase, RouterCount
from tests.attach.tools import batch, forward, tiny

UNUSED, EMPTY, ENTERED, COUNTED, REPLAYED = CountState


def add(count):
    count.add_tally("a tally")


def failing(*events):
    """A training forward with these events that raises."""

    def forward(count):
        count.begin_forward()
        for event in events:
            event(count)
        count.fail_forward()

    return forward


replay = RouterCount.replay_choice
enter, clear, take = RouterCount.enter_block, RouterCount.clear, RouterCount.take_tallies


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], UNUSED),
        ([enter], ENTERED),
        ([enter, add], COUNTED),
        ([enter, add, enter], COUNTED),
        ([enter, clear], UNUSED),
        ([add, clear], EMPTY),
        ([add, take], EMPTY),
        ([add, take, enter], ENTERED),
        ([add, take, enter, take], EMPTY),
        ([failing(enter)], UNUSED),
        ([failing(enter, add)], EMPTY),
        ([add, failing(enter, add)], COUNTED),
        ([add, take, failing(enter)], EMPTY),
        ([enter, replay], REPLAYED),
        ([enter, replay, enter], REPLAYED),
        ([enter, add, enter, replay], COUNTED),
        ([enter, replay, enter, add], COUNTED),
        ([replay, take], EMPTY),
        ([failing(enter, replay)], EMPTY),
        ([replay, failing(enter)], REPLAYED),
        ([replay, failing(enter, add)], REPLAYED),
    ],
)
def test_events_lead_to_their_state(events, state):
    count = RouterCount()
    for event in events:
        event(count)
    assert count.state is state
    assert (count.state is COUNTED) == bool(count.tallies)


def test_a_failed_forward_takes_back_its_own_tallies_only():
    count = RouterCount()
    count.add_tally("first")
    failing(add, add)(count)
    assert count.take_tallies() == ["first"]
    assert count.take_tallies() == []


def phases_of(model, balancing):
    """The phases that the second layer sees while the model runs."""
    seen = []
    model.model.layers[1].register_forward_pre_hook(lambda *_: seen.append(balancing.context.phase))
    return seen


def test_a_forward_has_a_phase():
    model = tiny("deepseek_v3")
    balancing = equipoise.balance(model)
    seen = phases_of(model, balancing)
    forward(model, batch())
    assert balancing.context.phase is ForwardPhase.IDLE
    with torch.no_grad():
        forward(model, batch())
    assert seen == [ForwardPhase.TRAINING, ForwardPhase.PASSIVE]
    balancing.detach()
    forward(model, batch())
    assert seen[-1] is balancing.context.phase is ForwardPhase.DETACHED


def test_a_recomputation_is_no_training_forward():
    model = tiny("deepseek_v3")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    balancing = equipoise.balance(model)
    (count,) = [router.count for router in balancing.routers]
    seen = phases_of(model, balancing)
    loss = forward(model, batch())
    assert not balancing.context.backward_seen
    loss.backward()
    assert balancing.context.backward_seen
    assert seen == [ForwardPhase.TRAINING, ForwardPhase.IDLE]
    assert (count.state, len(count.tallies)) == (COUNTED, 1)


def test_a_forward_that_raises_ends():
    model = tiny("deepseek_v3")
    balancing = equipoise.balance(model)
    (count,) = [router.count for router in balancing.routers]
    with (
        model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0),
        pytest.raises(ZeroDivisionError),
    ):
        forward(model, batch())
    assert balancing.context.phase is ForwardPhase.IDLE
    assert (count.state, count.tallies) == (EMPTY, [])
