"""The load of a device, against tokens that are sent one by one."""

import numpy as np
import pytest

from equipoise.placement.device_loads import (
    even_load,
    fullest_device,
    linear_slots,
    loads_of_devices,
    ranked_loads,
)


def sent_one_by_one(tokens, slots):
    """(D,): each token of an expert goes to the next of its copies in turn."""
    received = np.zeros(len(slots), int)
    for expert, count in enumerate(tokens):
        homes = [device for device, held in enumerate(slots) for each in held if each == expert]
        for token in range(count):
            received[homes[token % len(homes)]] += 1
    return received


@pytest.mark.parametrize("seed", range(5))
def test_loads_are_those_of_sent_tokens(seed):
    rng = np.random.default_rng(seed)
    slots = rng.permutation(np.concatenate([np.arange(6), rng.integers(6, size=6)])).reshape(4, 3)
    # 27720 is a multiple of every number of copies: they share evenly to the token
    loads = 27720 * rng.integers(0, 3, (5, 6))
    wanted = [sent_one_by_one(batch, slots) for batch in loads]
    np.testing.assert_allclose(loads_of_devices(loads, slots), wanted, rtol=1e-12)


def test_cost_idle_and_ranks():
    loads = np.array([[4, 2, 1, 1], [1, 1, 2, 4]])
    slots = np.array([[0, 1], [2, 3]])
    assert fullest_device(loads, slots) == 6
    assert even_load(loads, 2) == 4
    assert ranked_loads(loads, slots).tolist() == [6, 2]


def test_linear_is_how_engines_begin():
    assert linear_slots(4, 3, 2).tolist() == [[0, 1], [2, 3], [0, 1]]
