"""Even loads for benchmarks, for any number of tokens and devices."""

import numpy as np
import pytest
import torch

import equipoise
from equipoise.attach.replay import EvenLoads
from equipoise.attach.replay.given_experts import RouterShape
from tests.attach.tools import batch, forward, tiny

pytestmark = pytest.mark.filterwarnings("ignore:forwards whose experts are replayed")


@pytest.mark.parametrize("devices", [1, 2, 8, 16])
@pytest.mark.parametrize("top_k", [1, 3, 16])
def test_no_expert_and_no_device_has_two_more_than_another(devices, top_k):
    rows = EvenLoads(devices).rows_of(RouterShape("layer", 16, top_k))
    loads = np.zeros(16, int)
    for tokens in (1, 1, 2, 3, 5, 7, 64, 100):
        taken = rows.take_next("layer", tokens)
        assert taken.shape == (tokens, top_k)
        assert all(len(set(row)) == top_k for row in taken.tolist())
        loads += np.bincount(taken.ravel(), minlength=16)
        by_device = loads.reshape(devices, -1).sum(1)
        assert np.ptp(loads) <= 1
        assert np.ptp(by_device) <= 1


def test_a_model_under_checkpointing():
    gradients = []
    for checkpointing in (False, True):
        model = tiny("deepseek_v3")
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        balancing = equipoise.balance(model, "deepseek")
        even, recording = balancing.replay(EvenLoads(devices=4)), balancing.record_experts()
        with even as replayed, recording as taken:
            loss = forward(model, batch())
        loss.backward()
        gate = balancing.routers[0].found.gate
        gradients.append(gate.weight.grad)
        loads = np.bincount(taken[taken.layers[0]].ravel(), minlength=8)
        assert loads.tolist() == [9] * 8
        assert replayed.live_share == 0
    assert torch.equal(*gradients)


def test_devices_that_cannot_share_the_experts_are_refused():
    balancing = equipoise.balance(tiny("deepseek_v3"), "deepseek")
    with pytest.raises(ValueError, match=r"mlp: 8 experts .* by 3 devices"):
        balancing.replay(EvenLoads(3)).__enter__()
