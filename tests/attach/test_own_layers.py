"""Layers that people write themselves: balanced, or refused with the true reason and a remedy."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import equipoise
from equipoise.attach import find_routers

WIDTH, EXPERTS, TOP_K, TOKENS = 16, 6, 2, 40


class Experts(nn.Module):
    """Enough of an expert to train."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 8)

    def forward(self, hidden, indices, weights):
        every = torch.einsum("td,edf->tef", hidden, self.weight)
        chosen = every.gather(1, indices.unsqueeze(-1).expand(-1, -1, WIDTH))
        return (chosen * weights.unsqueeze(-1)).sum(1)


class Layer(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate
        self.experts = Experts()

    def forward(self, hidden):
        return self.experts(hidden, *self.gate(hidden))


class ChoosingLayer(Layer):
    """The gate is a plain Linear, and the block chooses: as most layers on GitHub do."""

    def __init__(self):
        super().__init__(nn.Linear(WIDTH, EXPERTS, bias=False))

    def forward(self, hidden):
        weights, indices = torch.topk(self.gate(hidden).softmax(-1), TOP_K, dim=-1)
        return self.experts(hidden, indices, weights)


class MethodLayer(ChoosingLayer):
    """The same, with the remedy that the refusal names."""

    def forward(self, hidden):
        return self.experts(hidden, *self.route_tokens_to_experts(self.gate(hidden)))

    def route_tokens_to_experts(self, router_logits):
        weights, indices = torch.topk(router_logits.softmax(-1), TOP_K, dim=-1)
        return indices, weights


def counted(layer):
    """The loads of one step, after which the layer is as it was."""
    balancing = equipoise.balance(layer)
    layer(torch.randn(TOKENS, WIDTH)).sum().backward()
    balancing.step()
    balancing.detach()
    return next(iter(balancing.metrics(loads=True)["loads"].values()))


def test_a_choice_one_level_up_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"ChoosingLayer.forward.*route_tokens_to_experts"):
        find_routers(nn.Sequential(ChoosingLayer()))


def test_the_remedy_works():
    assert sum(counted(nn.Sequential(MethodLayer()))) == TOKENS * TOP_K


class CapacityGate(nn.Module):
    """As nanoMoE's: it returns the used capacity first, integers that are not the choice."""

    def __init__(self):
        super().__init__()
        self.w_g = nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, hidden):
        weights, indices = self.w_g(hidden).topk(TOP_K, dim=-1)
        used = F.one_hot(indices, EXPERTS).sum((0, 1))
        return used, indices, weights.softmax(-1)


class CapacityLayer(Layer):
    def forward(self, hidden):
        return self.experts(hidden, *self.gate(hidden)[1:])


def test_integers_that_are_not_the_choice_do_not_matter():
    assert sum(counted(CapacityLayer(CapacityGate()))) == TOKENS * TOP_K


class TransposedGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.w_gating = nn.Parameter(torch.randn(WIDTH, EXPERTS))

    def forward(self, hidden):
        weights, indices = (hidden @ self.w_gating).softmax(-1).topk(TOP_K, dim=-1)
        return indices, weights


def test_a_transposed_weight_is_read():
    spec = find_routers(Layer(TransposedGate())).routers[0].spec
    assert (spec.num_experts, spec.top_k) == (EXPERTS, TOP_K)
    assert sum(counted(Layer(TransposedGate()))) == TOKENS * TOP_K


class OneByOneGate(TransposedGate):
    """The second expert is chosen by a second top-1: top-K would be read as 1."""

    def forward(self, hidden):
        scores = (hidden @ self.w_gating).softmax(-1)
        first, one = scores.topk(1, dim=-1)
        second, two = scores.scatter(-1, one, 0.0).topk(1, dim=-1)
        return torch.cat((one, two), -1), torch.cat((first, second), -1)


def test_several_top_ks_are_refused():
    with pytest.raises(ValueError, match="2 top-Ks over its experts"):
        find_routers(Layer(OneByOneGate()))


class FailingGate(TransposedGate):
    def forward(self, hidden):
        raise KeyError("no such thing")


class ForgetfulGate(TransposedGate):
    """Fails only when its weight is moved, in the probe's second run."""

    def __init__(self):
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(EXPERTS))
        self.calls = 0

    def forward(self, hidden):
        self.calls += 1
        if self.calls > 1:
            raise AttributeError("called twice")
        weights, indices = (hidden @ self.w_gating + self.vector).topk(TOP_K, dim=-1)
        return indices, weights


@pytest.mark.parametrize("gate", [FailingGate, ForgetfulGate])
def test_whatever_a_gate_raises_is_named(gate):
    model = nn.ModuleDict({"block": Layer(gate())})
    with pytest.raises(ValueError, match=rf"block\.gate \({gate.__name__}\).*skip=\['block'\]"):
        find_routers(model)
