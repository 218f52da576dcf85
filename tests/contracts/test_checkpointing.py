"""Activation checkpointing runs a forward twice. No count may notice."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.contracts.table import NUM_EXPERTS, ROWS, TOP_K, assert_same_state, forward


class Layer(nn.Module):
    """A router and one number per expert: the least that trains."""

    def __init__(self, balancer):
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.gate = nn.Parameter(torch.randn(8, NUM_EXPERTS, generator=rng))
        self.experts = nn.Parameter(torch.randn(NUM_EXPERTS, 8, generator=rng))
        self.balancer = balancer

    def forward(self, hidden):
        scores = (hidden @ self.gate).sigmoid()
        routing, tally = forward(self.balancer, scores)
        output = (routing.gates.unsqueeze(-1) * self.experts[routing.experts]).sum(1)
        return hidden + output, routing, tally


def train(layer, mode):
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(3):
        hidden = torch.randn(96, 8, generator=torch.Generator().manual_seed(step)).requires_grad_()
        run = (
            layer
            if mode is None
            else lambda x: checkpoint(layer, x, use_reentrant=mode == "reentrant")
        )
        output, routing, tally = run(hidden)
        output.square().mean().backward()
        assert tally.loads.sum() == 96 * TOP_K == routing.loads.sum()
        optimizer.step()
        optimizer.zero_grad()
        layer.balancer.update(tally)
    return layer


@pytest.mark.parametrize("mode", ["reentrant", "non-reentrant"])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_recomputing_counts_nothing_twice(row, mode):
    plain, checkpointed = train(Layer(row.make()), None), train(Layer(row.make()), mode)
    assert torch.equal(plain.gate, checkpointed.gate)
    assert_same_state(plain.balancer, checkpointed.balancer)
