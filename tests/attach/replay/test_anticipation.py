"""Anticipatory routing against slow twins: experts by weights of n steps ago, gates by today's."""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import equipoise
from equipoise.attach.find.bias import Bias
from equipoise.attach.replay.anticipation import Anticipation
from equipoise.layers.weight_history import WeightHistory
from equipoise.routing import route
from equipoise.routing.recomputation import in_backward
from tests.attach.own_models import InGroups, OwnModel, SoftmaxThenTopK, WithGate, hidden_states
from tests.attach.tools import BY_NAME, batch, forward, tiny

pytestmark = pytest.mark.filterwarnings("ignore:forwards whose experts are replayed")
STEPS, BACK = 4, 2


class Twin:
    """A model whose experts are found layer by layer, by hand from kept weights, and replayed."""

    def __init__(self, model, linears, score):
        self.balancing = equipoise.balance(model, "deepseek")
        self.model, self.linears, self.score = model, linears, score
        self.kept = [[linear.weight.detach().clone() for linear in linears]]

    def find(self, run):
        """(T, K) of every layer, and its scores by the older weights."""
        routers, older, inputs = (
            self.balancing.routers,
            self.kept[max(-1 - BACK, -len(self.kept))],
            {},
        )
        handles = [
            linear.register_forward_pre_hook(lambda _, args, n=n: inputs.__setitem__(n, args[0]))
            for n, linear in enumerate(self.linears)
        ]
        rows, scores = {router.name: None for router in routers}, {}
        for place, router in enumerate(routers):
            with torch.no_grad(), self.balancing.record_experts() as seen:
                run()  # only to learn how many tokens there are
            tokens = len(seen[seen.layers[0]])
            live = torch.full((tokens, router.found.spec.top_k), -1)
            given = {name: live if found is None else found for name, found in rows.items()}
            with torch.no_grad(), self.balancing.replay(given):
                run()
            hidden = inputs[place].reshape(-1, inputs[place].shape[-1]).float()
            scores[router.name] = self.score(hidden @ older[place].T)
            shifted = scores[router.name] + router.applied_shift
            order = shifted.sort(dim=1, descending=True, stable=True).indices
            rows[router.name] = order[:, : router.found.spec.top_k]
        for handle in handles:
            handle.remove()
        return rows, scores

    def follow(self, balancing):
        """After a step of the other: its weights are kept, its shifts taken over."""
        self.model.load_state_dict(balancing.model.state_dict())
        for mine, other in zip(self.balancing.routers, balancing.routers):
            mine.shift.set(other.applied_shift)
        self.kept.append([linear.weight.detach().clone() for linear in self.linears])


def gradients_of(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def train_beside(model, twin, rule, run, twin_run):
    """Steps of both; at each the same loss and gradients to the last bit, and the tally by hand."""
    balancing = equipoise.balance(model, rule)
    balancing.anticipate(BACK)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for seed in range(STEPS):
        rows, scores = twin.find(partial(twin_run, seed))
        with twin.balancing.replay(rows):
            wanted = twin_run(seed)
        wanted.backward()
        with balancing.record_experts() as taken:
            loss = run(seed)
        loss.backward()
        assert torch.equal(loss, wanted)
        expected = gradients_of(twin.model)
        for name, value in gradients_of(model).items():
            assert torch.equal(value, expected[name]), name
        states = {router.name: copy.deepcopy(router.balancer) for router in balancing.routers}
        optimizer.step()
        balancing.step()
        for router in balancing.routers:
            assert torch.equal(torch.from_numpy(taken[router.name]).long(), rows[router.name])
            check_tally(router, balancing, scores[router.name], states[router.name])
        optimizer.zero_grad()
        twin.model.zero_grad()
        twin.follow(balancing)
    return balancing


def check_tally(router, balancing, scores, before):
    """What was counted is the choice by older weights; `before` is its balancer of then."""
    tally = balancing.last_tallies[router.name]
    routing = route(scores, before.top_k, choose_by=before.adjust(scores))
    wanted = before.tally(scores, routing)
    assert torch.equal(tally.loads, wanted.loads)
    for name, part in tally.parts.items():
        assert torch.equal(part, wanted.parts[name]), name


SCORES = {
    "deepseek_v3": torch.sigmoid,
    "afmoe": torch.sigmoid,
    "qwen3_moe": lambda logits: logits.softmax(-1),
}


@pytest.mark.parametrize("rule", ["deepseek", "quantile"])
@pytest.mark.parametrize("name", SCORES)
def test_a_family_against_its_slow_twin(name, rule):
    config = {"n_group": 1, "topk_group": 1} if name == "deepseek_v3" else {}
    family = type(BY_NAME[name])(name, overrides=config)
    (model, _), (other, gates) = sharp_model(family), sharp_model(family)
    if rule == "quantile":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    train_beside(
        model,
        Twin(other, gates, SCORES[name]),
        rule,
        lambda seed: forward(model, batch(seed)),
        lambda seed: forward(other, batch(seed)),
    )


def sharp_model(family):
    """A model whose routers tell tokens apart, and its gates."""
    model = family.model().train()
    balancing = equipoise.balance(model, "deepseek")
    gates = [router.found.gate for router in balancing.routers]
    balancing.detach()
    linears = [getattr(gate, "gate", gate) for gate in gates]
    for linear in linears:
        linear.weight.data.mul_(5.0)
    return model, linears


@pytest.mark.parametrize("layer", [SoftmaxThenTopK, WithGate])
def test_layers_of_ones_own(layer):
    model, other = OwnModel(layer), OwnModel(layer)
    linears = [block.selector.w_g if layer is WithGate else block.gate for block in other.blocks]
    twin = Twin(other, linears, SCORES["qwen3_moe"])
    balancing = train_beside(
        model,
        twin,
        "deepseek",
        lambda seed: model(hidden_states(seed)).square().mean(),
        lambda seed: other(hidden_states(seed)).square().mean(),
    )
    # the experts' weights are not kept
    for router in balancing.routers:
        assert [each.shape for each in router.exchange.anticipation.history.oldest] == [(6, 16)]


def test_groups_and_evaluation_and_the_end():
    model = OwnModel(InGroups)
    balancing = equipoise.balance(model, "deepseek")
    balancing.anticipate(3)
    model(hidden_states()).sum().backward()
    balancing.step()
    gate = model.blocks[0].gate
    with torch.no_grad():
        gate.weight.neg_()
    with torch.no_grad(), balancing.record_experts() as older:
        model(hidden_states())
    with torch.no_grad(), balancing.record_experts() as today:
        model.eval()(hidden_states())
    model.train()
    balancing.anticipate(0)
    with torch.no_grad(), balancing.record_experts() as ended:
        model(hidden_states())
    first = today.layers[0]
    assert (ended[first] == today[first]).all()
    assert (older[first] != today[first]).any(1).mean() > 0.5


class RouterModel(nn.Module):
    def __init__(self, kind, anticipate):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.kind, self.tallies = nn.Linear(16, 16), kind, []
        balancer = equipoise.balancer("quantile", 8, top_k=2)
        self.router = equipoise.Router(
            16, balancer, renormalize=True, anticipate=anticipate, init_std=0.5
        )

    def forward(self, hidden):
        hidden = self.embed(hidden)
        if self.kind == "none":
            return self.choose(hidden)
        return checkpoint(self.choose, hidden, use_reentrant=self.kind == "reentrant")

    def choose(self, hidden):
        routing, tally, *_ = self.router(hidden)
        if not in_backward():
            self.tally = tally
        return routing.experts, routing.gates


@pytest.mark.parametrize("kind", ["none", "reentrant", "other"])
def test_an_own_router_against_its_slow_twin(kind):
    model = RouterModel(kind, BACK)
    twin, kept, differ = copy.deepcopy(model), [], 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for seed in range(STEPS + 1):
        hidden = torch.randn(40, 16, generator=torch.Generator().manual_seed(seed))
        kept.append(model.router.weight.detach().clone())
        older = kept[max(-1 - BACK, -len(kept))]
        (experts, found), tally = model(hidden), model.tally
        inner, balancer = twin.embed(hidden), model.router.balancer
        scores = (inner.detach() @ older.T).softmax(-1)
        wanted = route(scores, 2, shift=balancer.shift)
        assert torch.equal(experts, wanted.experts)
        today = (inner @ twin.router.weight.T).softmax(-1)
        differ += int((route(today, 2, shift=balancer.shift).experts != wanted.experts).sum())
        gates = today.gather(1, wanted.experts)
        gates = gates / gates.sum(1, keepdim=True)
        torch.testing.assert_close(found, gates)
        by_hand = balancer.tally(scores, wanted)
        assert torch.equal(tally.loads, by_hand.loads)
        assert all(torch.equal(tally.parts[name], by_hand.parts[name]) for name in tally.parts)
        found.square()[:, 0].sum().backward()
        gates.square()[:, 0].sum().backward()
        torch.testing.assert_close(model.router.weight.grad, twin.router.weight.grad)
        optimizer.step()
        balancer.update(tally)
        optimizer.zero_grad()
        twin.load_state_dict(model.state_dict())
        twin.zero_grad()
    assert differ > 10
    assert len(model.router._history) == BACK + 1


def test_history():
    history, value = WeightHistory(2), torch.zeros(1)
    seen = []
    for _ in range(5):
        history.add([value])
        seen.append(history.oldest[0].item())
        value += 1
    assert seen == [0, 0, 0, 1, 2]
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="number of steps"):
            WeightHistory(wrong)


def test_a_bias_that_is_a_parameter_of_the_gate_is_todays():
    gate = nn.Linear(4, 3)
    found = SimpleNamespace(gate=gate, block=nn.Sequential(gate), bias=Bias(gate, "bias", "0.bias"))
    kept = Anticipation(found, 2).history.oldest
    assert len(kept) == 1
    assert torch.equal(kept[0], gate.weight)


def test_a_router_outside_of_the_gate_is_refused():
    balancing = equipoise.balance(tiny("dbrx"), "deepseek")
    with pytest.raises(ValueError, match="choose outside of their gate"):
        balancing.anticipate(1)
