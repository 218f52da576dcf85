"""On the meta device there are no values to look at: what runs there never makes a GPU wait for
one.
"""

import pytest
import torch

from equipoise.routing import route
from tests.contracts.table import NUM_EXPERTS, ROWS, TOP_K, forward


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_step_needs_no_values(row):
    balancer = row.make().to("meta")
    scores = torch.rand(64, NUM_EXPERTS, device="meta")
    mask = torch.zeros(64, dtype=torch.bool, device="meta")
    routing, tally = forward(balancer, scores, mask)
    balancer.update(tally + forward(balancer, scores, mask)[1])
    assert {
        tensor.device.type
        for tensor in (*routing, tally.loads, balancer.shift)
        if tensor is not None
    } == {"meta"}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_tensors_follow_the_scores(row):
    balancer = row.make()  # on the CPU
    scores = torch.rand(64, NUM_EXPERTS, device="meta")
    routing = route(scores, TOP_K, choose_by=balancer.adjust(scores), groups=(4, 2))
    tally = balancer.tally(scores, routing)
    assert {
        tensor.device.type for tensor in (routing.loads, tally.step, *tally.parts.values())
    } == {"meta"}
