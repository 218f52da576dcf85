"""LayerBalancer: a layer of one's own owns it, and every token trained on counts once."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import equipoise

WIDTH, EXPERTS, TOP_K, TOKENS = 16, 8, 2, 248


class OwnMoE(nn.Module):
    """Sixty-line layers in six."""

    def __init__(self, rule="deepseek", **options):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.balancer = equipoise.LayerBalancer(rule, EXPERTS, TOP_K, **options)
        self.received = torch.zeros(EXPERTS, dtype=torch.int64)
        self.penalty = 0

    def forward(self, hidden, mask=None):
        logits = self.gate(hidden)
        routing = self.balancer(logits.softmax(-1), mask, logits=logits)
        self.penalty, self.received = routing.penalty, routing.loads
        combine = torch.zeros(*hidden.shape[:-1], EXPERTS).scatter(
            -1, routing.experts, routing.gates
        )
        outputs = torch.stack([expert(hidden) for expert in self.experts], -2)
        return hidden + (combine.unsqueeze(-1) * outputs).sum(-2)


class Model(nn.Module):
    def __init__(self, layers=2, rule="deepseek", kind=None, seed=0, **options):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(OwnMoE(rule, **options) for _ in range(layers))
        self.kind = kind

    def forward(self, hidden, mask=None):
        for layer in self.layers:
            if self.kind is None:
                hidden = layer(hidden, mask)
            else:
                hidden = checkpoint(layer, hidden, mask, use_reentrant=self.kind == "reentrant")
        return hidden


def batch(seed=0, tokens=TOKENS):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(4, tokens // 4, WIDTH, generator=rng).requires_grad_()


def counts(model):
    return [layer.balancer.counted.loads.tolist() for layer in model.layers]


def expected(seeds, rule="deepseek", mask=None):
    """By hand: the loads of plain forwards, added up."""
    model, total = Model(rule=rule), [torch.zeros(EXPERTS, dtype=torch.int64)] * 2
    for seed in seeds:
        with torch.no_grad():
            model(batch(seed), mask)
        total = [sum_ + layer.received for sum_, layer in zip(total, model.layers)]
    return [each.tolist() for each in total]


def test_it_chooses_as_its_balancer_does():
    layer = equipoise.LayerBalancer("quantile", EXPERTS, TOP_K, renormalize=True, scale=2.5)
    layer.balancer.shift.copy_(torch.randn(EXPERTS))
    scores = torch.rand(3, 5, EXPERTS)
    mine, plain = layer(scores), layer.balancer.route(scores, renormalize=True, scale=2.5)
    assert mine.experts.shape == mine.gates.shape == (3, 5, TOP_K)
    assert torch.equal(mine.experts.flatten(0, 1), plain.experts)
    assert torch.equal(mine.gates.flatten(0, 1), plain.gates)
    assert torch.equal(mine.loads, plain.loads)


@pytest.mark.parametrize("kind", [None, "reentrant", "other"])
@pytest.mark.parametrize("rule", ["deepseek", "quantile", "curvature"])
def test_a_token_counts_once_under_every_checkpointing(kind, rule):
    model = Model(rule=rule, kind=kind)
    for seed in (0, 1):
        model(batch(seed)).square().mean().backward()
    assert counts(model) == expected((0, 1))
    assert sum(counts(model)[0]) == 2 * TOKENS * TOP_K
    assert len(model.layers[0].balancer.counted.forwards) == 2
    for name, part in model.layers[0].balancer.counted.parts.items():
        twin = Model(rule=rule)
        for seed in (0, 1):
            twin(batch(seed)).square().mean().backward()
        assert torch.equal(part, twin.layers[0].balancer.counted.parts[name])


def test_what_is_not_trained_on_does_not_count():
    model = Model()
    model(batch(7))  # the loss never comes
    with torch.no_grad():
        model(batch(7))
    model.eval()
    model(batch(7)).sum().backward()
    model.train()
    assert [layer.balancer.counted for layer in model.layers] == [None, None]
    with pytest.raises(RuntimeError, match=r"no gradient came back.*layers.0.balancer"):
        equipoise.step(model)


@pytest.mark.parametrize("kind", [None, "reentrant", "other"])
def test_an_evaluation_of_the_same_batch_changes_nothing(kind):
    """In training mode and without gradients, as some log their metrics; before and after."""
    model = Model(kind=kind)
    for _ in range(2):
        with torch.no_grad():
            model(batch(0))
        model(batch(0)).sum().backward()
        with torch.no_grad():
            model(batch(0))
    assert counts(model) == expected((0, 0))


def test_a_forward_that_raises_is_taken_back():
    model = Model()
    with (
        model.layers[1].gate.register_forward_pre_hook(lambda *_: 1 / 0),
        pytest.raises(ZeroDivisionError),
    ):
        model(batch(5))
    model(batch(0)).sum().backward()
    assert counts(model) == expected((0,))


def test_gates_may_be_changed_in_place():
    layer = equipoise.LayerBalancer("deepseek", EXPERTS, TOP_K)
    gates = layer(torch.rand(2, 5, EXPERTS, requires_grad=True).softmax(-1)).gates
    gates /= gates.sum(-1, keepdim=True).detach()
    gates[0].square().sum().backward()
    assert layer.counted.loads.sum() == 2 * 5 * TOP_K


def test_a_graph_that_is_gone_through_twice_counts_once():
    model = Model()
    loss = model(batch(0)).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    assert counts(model) == expected((0,))


def test_gradients_of_gradients_count_once():
    model = Model()
    inputs = batch(0)
    (gradient,) = torch.autograd.grad(model(inputs).square().sum(), inputs, create_graph=True)
    gradient.square().sum().backward()
    assert counts(model) == expected((0,))


def test_padding_is_left_out():
    mask = torch.zeros(4, TOKENS // 4, dtype=torch.bool)
    mask[1:, 20:] = True
    model = Model()
    model(batch(0), mask).sum().backward()
    assert counts(model) == expected((0,), mask=mask)
    assert sum(counts(model)[0]) == int((~mask).sum()) * TOP_K


@pytest.mark.parametrize("kind", [None, "other"])
def test_a_frozen_gate_is_counted(kind):
    model = Model(kind=kind)
    for layer in model.layers:
        layer.gate.requires_grad_(False)
    model(batch(0).detach().requires_grad_(kind is not None)).sum().backward()
    model.layers[0].balancer.balancer.update(model.layers[0].balancer.take_tally())
    assert counts_of(model.layers[1]) == expected((0,))[1]


def counts_of(layer):
    return layer.balancer.counted.loads.tolist()


def test_gates_that_are_not_used_are_told():
    class Careless(OwnMoE):
        def forward(self, hidden):
            return self.experts[0](hidden) + 0 * self.balancer(self.gate(hidden)).experts.sum()

    model = nn.ModuleDict({"moe": Careless()})
    model["moe"](batch(0)).sum().backward()
    with pytest.raises(RuntimeError, match=r"gates of moe\.balancer.*routing\.gates"):
        equipoise.step(model)


def test_a_penalty_reaches_the_gate():
    layer = OwnMoE("aux", coefficient=0.5)
    layer(batch(0))
    plain = layer.balancer.balancer
    scores = layer.gate(batch(0)).softmax(-1)
    assert layer.penalty.item() == pytest.approx(
        plain.penalty(scores, plain.route(scores)).item(), rel=1e-6
    )
    layer.penalty.backward()
    assert layer.gate.weight.grad.any()


@pytest.mark.parametrize("rule", ["base", "sinkhorn", "z_loss", "none", "bip"])
def test_every_kind_of_balancer_can_be_owned(rule):
    model = Model(rule=rule)
    model(batch(0)).square().mean().backward()
    assert sum(equipoise.step(model).loads["layers.0.balancer"].tolist()) == TOKENS * TOP_K


# ---- copies and files


def test_copies_route_alike_and_count_for_themselves():
    model = Model()
    model(batch(0)).sum().backward()
    equipoise.step(model)
    model(batch(1)).sum().backward()
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    for twin in (copy.deepcopy(model), torch.load(stream, weights_only=False)):
        assert [layer.balancer.counted for layer in twin.layers] == [None, None]
        assert torch.equal(
            twin.layers[0].balancer.balancer.shift, model.layers[0].balancer.balancer.shift
        )
        twin(batch(1)).sum().backward()
        assert counts(twin) == counts(model)
        equipoise.step(twin)
    assert model.layers[0].balancer.counted is not None


@pytest.mark.parametrize("rule", ["smebu", "quantile", "curvature"])
def test_a_state_dict_continues_the_training(rule):
    def train(model, seeds):
        for seed in seeds:
            model(batch(seed)).sum().backward()
            equipoise.step(model)
        return model

    whole, first = train(Model(rule=rule), range(4)), train(Model(rule=rule), range(2))
    second = Model(rule=rule, seed=1)
    second.load_state_dict(first.state_dict())
    second = train(second, range(2, 4))
    for mine, other in zip(whole.state_dict().values(), second.state_dict().values()):
        assert torch.equal(mine, other)


def test_casts_leave_its_shift_alone():
    model = Model()
    model(batch(0)).sum().backward()
    equipoise.step(model)
    before = model.layers[0].balancer.balancer.shift.clone()
    assert torch.equal(model.bfloat16().layers[0].balancer.balancer.shift, before)


# ---- compiled


@pytest.mark.parametrize("kind", [None, "reentrant", "other"])
@pytest.mark.parametrize("rule", ["deepseek", "curvature"])
def test_compiled_layers_count_alike(kind, rule):
    """Each layer alone, and more of them than torch.compile makes versions of one function."""
    torch._dynamo.reset()
    model, plain = Model(10, rule, kind), Model(10, rule)
    for layer in model.layers:
        layer.compile(fullgraph=True, backend="aot_eager")
    for seed in (0, 1):
        model(batch(seed)).square().mean().backward()
        plain(batch(seed)).square().mean().backward()
    assert counts(model) == counts(plain)
    for mine, other in zip(model.layers, plain.layers):
        assert torch.equal(mine.gate.weight.grad, other.gate.weight.grad)
        for name, part in other.balancer.counted.parts.items():
            assert torch.equal(mine.balancer.counted.parts[name], part)
    equipoise.step(model)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_compiled_model_counts_alike(frozen):
    torch._dynamo.reset()
    model = Model()
    for layer in model.layers:
        layer.gate.requires_grad_(not frozen)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    hidden = batch(0).detach()
    compiled(hidden).square().mean().backward()
    assert counts(model)[0] == expected((0,))[0]
    if frozen:
        return  # the second layer's scores have gradients, through the first one's experts
    with torch.no_grad():
        compiled(hidden)
    model.eval()
    assert F.mse_loss(compiled(hidden), model(hidden)) == 0
    assert counts(model) == expected((0,))
