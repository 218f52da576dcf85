"""torch.compile: a balanced model in evaluation is one graph, with the same results."""

import pytest
import torch

import equipoise
from tests.attach.tools import batch, tiny


def balanced(name):
    """In evaluation, with shifts that change the choice."""
    model = tiny(name)
    balancing = equipoise.balance(model)
    for router in balancing.routers:
        router.shift.set(torch.linspace(-0.2, 0.2, router.balancer.num_experts))
    return model.eval(), balancing


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])  # with a bias, and without
def test_evaluation_is_one_graph(name, grad):
    model, balancing = balanced(name)
    torch._dynamo.reset()
    with torch.set_grad_enabled(grad):
        expected = model(**batch()).logits
        found = torch.compile(model, fullgraph=True, backend="eager")(**batch()).logits
        torch.testing.assert_close(found, expected)
        # the graph holds no old shift
        for router in balancing.routers:
            router.shift.set(-router.balancer.shift)
        moved = model(**batch()).logits
        assert not torch.allclose(moved, expected)
        found = torch.compile(model, fullgraph=True, backend="eager")(**batch()).logits
        torch.testing.assert_close(found, moved)


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_training_after_evaluation_is_counted(name):
    """And a gate that breaks the graph by itself is shifted all the same."""
    model, balancing = balanced(name)
    gate = balancing.routers[0].found.gate
    gate.register_forward_pre_hook(lambda *_: torch._dynamo.graph_break())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(**batch()).logits, model(**batch()).logits)
    model.train()
    compiled(**batch()).logits.sum().backward()
    balancing.step()
    choices = batch()["input_ids"].numel() * 2
    loads = balancing.metrics(loads=True)["loads"]
    assert [sum(each) for each in loads.values()] == [choices] * len(loads)


def test_a_graph_break_under_our_top_k_is_no_error():
    model, balancing = balanced("mixtral")
    balancing.detach()
    gate = model.model.layers[0].mlp.gate
    own = type(gate).forward

    class BreakingGate(type(gate)):
        def forward(self, hidden_states):
            torch._dynamo.graph_break()
            return own(self, hidden_states)

    gate.__class__ = BreakingGate
    balancing = equipoise.balance(model)
    for router in balancing.routers:
        router.shift.set(torch.linspace(-0.2, 0.2, router.balancer.num_experts))
    torch._dynamo.reset()
    with torch.no_grad():
        expected = model(**batch()).logits
        found = torch.compile(model, backend="eager")(**batch()).logits
    torch.testing.assert_close(found, expected)
