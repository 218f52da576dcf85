"""The count of a router moves as the table of states.py says."""

import pytest

from equipoise.attach.count.states import CountState, RouterCount

UNUSED, EMPTY, ENTERED, COUNTED = CountState


def add(count):
    count.add("a tally")


def failing(*events):
    """A training forward with these events that raises."""

    def forward(count):
        count.begin_forward()
        for event in events:
            event(count)
        count.fail_forward()

    return forward


enter, clear, take = RouterCount.enter_block, RouterCount.clear, RouterCount.take


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
    count.add("first")
    failing(add, add)(count)
    assert count.take() == ["first"]
    assert count.take() == []
