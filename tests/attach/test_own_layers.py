"""Layers that people write themselves: balanced, or refused with the true reason and a remedy."""

import warnings

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
    """The same, in a method as transformers has it."""

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


def test_a_choice_one_level_up_is_counted():
    (router,) = find_routers(nn.Sequential(ChoosingLayer())).routers
    assert (router.gate, router.block) == (router.block, router.block)
    assert sum(counted(nn.Sequential(ChoosingLayer()))) == TOKENS * TOP_K


def test_a_method_that_chooses_is_counted():
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


class FlatGate(nn.Module):
    """As OLMo-core's: the weight is flat, so that FSDP can cut it up."""

    def __init__(self):
        super().__init__()
        self.d_model, self.num_experts, self.top_k = WIDTH, EXPERTS, TOP_K
        self.weight = nn.Parameter(torch.randn(EXPERTS * WIDTH))
        self.register_buffer("score_bias", torch.zeros(EXPERTS))

    def forward(self, hidden, *, divisor=None):
        scores = (hidden @ self.weight.view(EXPERTS, WIDTH).T).softmax(-1)
        indices = torch.topk(scores + self.score_bias, self.top_k, dim=-1).indices
        # a loss for balance, a single number
        return indices, scores.gather(-1, indices), scores.square().sum()


class FlatLayer(Layer):
    def forward(self, hidden):
        return self.experts(hidden, *self.gate(hidden)[:2])


def test_a_flat_weight_is_read():
    found = find_routers(FlatLayer(FlatGate())).routers[0]
    assert (found.spec.num_experts, found.spec.top_k) == (EXPERTS, TOP_K)
    assert found.bias.path == "gate.score_bias"
    assert sum(counted(FlatLayer(FlatGate()))) == TOKENS * TOP_K


class MaskedGate(TransposedGate):
    """As NeMo Automodel's: it requires a mask and a mesh, which may be None."""

    def __init__(self, biased):
        super().__init__()
        self.register_buffer("correction", torch.zeros(EXPERTS) if biased else None)

    def forward(self, hidden, token_mask, mesh):
        assert mesh is None
        scores = (hidden @ self.w_gating).sigmoid()
        ranked = scores if self.correction is None else scores + self.correction
        indices = torch.topk(ranked, TOP_K, dim=-1)[1]
        return scores.gather(-1, indices) * token_mask.unsqueeze(-1), indices, None


class MaskedExperts(Experts):
    def forward(self, hidden, token_mask, weights, indices):
        return super().forward(hidden * token_mask.unsqueeze(-1), indices, weights)


class MaskedLayer(Layer):
    def __init__(self, biased):
        super().__init__(MaskedGate(biased))
        self.experts = MaskedExperts()

    def forward(self, hidden):
        mask = torch.ones(len(hidden), dtype=torch.bool)
        weights, indices, _ = self.gate(hidden, mask, None)
        self.seen = torch.bincount(indices.flatten(), minlength=EXPERTS)
        return self.experts(hidden, mask, weights, indices)


@pytest.mark.parametrize("biased", [True, False])
def test_a_mask_is_not_counted_as_a_choice(biased):
    """It is the first of the experts' arguments that holds no floats."""
    layer = MaskedLayer(biased)
    assert counted(layer) == layer.seen.tolist()


def train_beside(layer, moves):
    """Four steps in which another rule moves the bias too, or none does."""
    balancing = equipoise.balance(layer, update_rate=0.01)
    for _ in range(4):
        layer(torch.randn(TOKENS, WIDTH)).sum().backward()
        layer.gate.score_bias.add_(moves)
        balancing.step()


def test_a_second_rule_that_moves_the_bias_is_told():
    with pytest.warns(UserWarning, match=r"something else changed gate\.score_bias"):
        train_beside(FlatLayer(FlatGate()), 0.001 * torch.randn(EXPERTS))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # touched, but not moved
        train_beside(FlatLayer(FlatGate()), 0.0)


class WeighingGate(FlatGate):
    """Its gate weights are of the shifted scores."""

    def __init__(self):
        super().__init__()
        self.register_buffer("e_score_correction_bias", torch.zeros(EXPERTS))

    def forward(self, hidden):
        scores = (hidden @ self.weight.view(EXPERTS, WIDTH).T).softmax(-1)
        weights, indices = torch.topk(scores + self.e_score_correction_bias, TOP_K, dim=-1)
        return indices, weights


def test_a_bias_that_enters_the_gate_weights_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"e_score_correction_bias.*gate weights do.*skip=\['b'\]"):
        find_routers(nn.ModuleDict({"b": Layer(WeighingGate())}))


class Tempered(nn.Module):
    """Its logits are divided by a temperature that is learned: a parameter of no dimensions."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, hidden):
        scores = (hidden @ self.weight.T / self.temperature).softmax(-1)
        weights, indices = scores.topk(TOP_K)
        return indices, weights


def test_a_single_number_beside_the_weights_is_no_obstacle():
    (router,) = find_routers(nn.ModuleList([Layer(Tempered())])).routers
    assert (router.spec.num_experts, router.spec.top_k) == (EXPERTS, TOP_K)
    assert router.bias is None
