"""Layers that people write themselves are balanced from outside: found or named, counted exactly,
and undone.
"""

import copy
import textwrap
import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import equipoise
from equipoise.attach import find_routers
from equipoise.attach.find.remedy import TEN_LINES
from tests.attach.own_models import (
    EXPERTS,
    FOUND,
    TOP_K,
    CalledExperts,
    Gate,
    InGroups,
    Largest,
    OneHot,
    OwnLayer,
    OwnModel,
    SoftmaxThenTopK,
    TopKThenSoftmax,
    WithGate,
    hidden_states,
)

NAMED = {Largest: Largest}


def balanced(model, rule="deepseek", **options):
    routers = NAMED.get(type(model.blocks[0]))
    return equipoise.balance(model, rule, routers=routers, **options)


def loads_of(balancing):
    return list(balancing.metrics(loads=True)["loads"].values())


@pytest.mark.parametrize("layer", [*FOUND, Largest])
@pytest.mark.parametrize("rule", ["deepseek", "curvature"])
def test_loads_are_what_the_experts_received(layer, rule):
    model = OwnModel(layer)
    balancing = balanced(model, rule)
    for block in model.blocks:
        block.received.clear()  # a probe that looks for torch.max runs to the end
    assert [router.spec.top_k for router in find_specs(balancing)] == [layer.top_k] * 2
    for step in range(3):
        for micro in range(2):
            model(hidden_states(10 * step + micro)).square().mean().backward()
        balancing.step()
        assert loads_of(balancing) == model.received()
    assert all(router.applied_shift.any() for router in balancing.routers)


def find_specs(balancing):
    return [router.found for router in balancing.routers]


@pytest.mark.parametrize("layer", [each for each in [*FOUND, Largest] if each.__name__ != "Noisy"])
def test_gates_never_see_the_shift(layer):
    """Where a token keeps its experts, its gates are the same numbers."""
    plain, model = OwnModel(layer, layers=1), OwnModel(layer, layers=1)
    (router,) = balanced(model).routers
    hidden = hidden_states()
    plain(hidden)
    router.shift.set(torch.full((EXPERTS,), 5.0))  # the same for all: nobody changes experts
    model(hidden)
    assert torch.equal(model.blocks[0].gates, plain.blocks[0].gates)
    router.shift.set(torch.arange(EXPERTS) * 100.0)  # the last two are chosen, whatever their score
    router.found.block.training = False
    model(hidden)
    best = range(EXPERTS - layer.top_k, EXPERTS)
    scores = plain_scores(model.blocks[0], model.embed(hidden))
    chosen = scores[..., list(best)]
    if layer is TopKThenSoftmax:
        chosen = chosen.softmax(-1)
    if "Renormalized" in layer.__name__:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    mine = model.blocks[0].gates
    assert torch.allclose(mine.sort(-1).values, chosen.sort(-1).values, atol=1e-6)


def plain_scores(block, hidden):
    linear = block.selector.w_g if isinstance(block, WithGate) else block.gate
    logits = linear(hidden)
    if isinstance(block, TopKThenSoftmax):
        return logits
    return logits.sigmoid() if type(block).__name__ in SIGMOID else logits.softmax(-1)


SIGMOID = ("SigmoidRenormalized", "InGroups")


@pytest.mark.parametrize("layer", FOUND)
def test_it_is_undone(layer):
    model, twin = OwnModel(layer), OwnModel(layer)
    balancing = balanced(model, "deepseek", update_rate=0.5)
    model(hidden_states()).sum().backward()
    balancing.step()
    balancing.detach()
    assert not [module for module in model.modules() if "forward" in vars(module)]
    for each in (model, twin):
        torch.manual_seed(3)
        each.answer = each(hidden_states(1))
    assert torch.equal(model.answer, twin.answer)


@pytest.mark.parametrize("layer", [SoftmaxThenTopK, TopKThenSoftmax, OneHot, InGroups])
def test_a_skewed_router_becomes_even(layer):
    model = OwnModel(layer, layers=1)
    with torch.no_grad():
        model.blocks[0].gate.weight[:2] += 0.1
        model.embed.bias += 1
    balancing = balanced(model, "curvature")
    found = []
    for step in range(40):
        model(hidden_states(step, rows=8)).sum().backward()
        balancing.step()
        found.append(balancing.metrics()["imbalance"])
    assert sum(found[-5:]) / 5 < found[0] / 3


class Checkpointed(OwnModel):
    def __init__(self, kind):
        super().__init__(SoftmaxThenTopK)
        self.kind = kind

    def forward(self, hidden):
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=self.kind == "reentrant")
        return hidden


@pytest.mark.parametrize("kind", ["reentrant", "other"])
def test_a_token_counts_once_under_checkpointing(kind):
    model = Checkpointed(kind)
    balancing = equipoise.balance(model)
    hidden = hidden_states().requires_grad_()
    output = model(hidden)
    received = model.received()
    output.sum().backward()
    with torch.no_grad():
        model(hidden)
    balancing.step()
    assert loads_of(balancing) == received


def test_evaluation_and_failed_forwards_do_not_count():
    model = OwnModel(SoftmaxThenTopK)
    balancing = equipoise.balance(model)
    with (
        model.blocks[1].register_forward_pre_hook(lambda *_: 1 / 0),
        pytest.raises(ZeroDivisionError),
    ):
        model(hidden_states(5))
    model.eval()
    model(hidden_states(6)).sum().backward()
    model.train()
    model.received()
    model(hidden_states(0)).sum().backward()
    balancing.step()
    assert loads_of(balancing) == model.received()


# ---- found, or named


def test_the_gate_is_found_and_not_the_block_around_it():
    balancing = equipoise.balance(OwnModel(WithGate))
    assert [router.name for router in balancing.routers] == [
        "blocks.0.selector",
        "blocks.1.selector",
    ]


def test_a_block_that_only_mentions_topk_is_not_taken_beside_its_gate():
    class Mentions(WithGate):
        topk = TOP_K

        def choose(self, hidden):
            gates, experts = self.selector(hidden)
            return gates[..., : self.topk], experts[..., : self.topk]

    names = [router.name for router in find_routers(OwnModel(Mentions)).routers]
    assert names == ["blocks.0.selector", "blocks.1.selector"]


@pytest.mark.parametrize("named", ["blocks.*.selector", Gate, WithGate, ["blocks.0", "blocks.1"]])
def test_named_in_any_way(named):
    model = OwnModel(WithGate)
    balancing = equipoise.balance(model, routers=named)
    model(hidden_states()).sum().backward()
    balancing.step()
    assert loads_of(balancing) == model.received()


def test_one_of_them_by_itself():
    model = OwnModel(InGroups)
    balancing = equipoise.balance(model, routers=model.blocks[1])
    assert [router.name for router in balancing.routers] == ["blocks.1"]
    assert equipoise.balance(OwnModel(InGroups), skip=["blocks.0"]).routers[0].name == "blocks.1"


def test_a_router_inside_another_is_shifted_once():
    model = OwnModel(WithGate, layers=1)
    balancing = equipoise.balance(model, routers=["blocks.0", "blocks.0.selector"])
    model(hidden_states()).sum().backward()
    with pytest.raises(RuntimeError, match=r"but were not counted: blocks\.0"):
        balancing.step()


def test_names_that_meet_nothing_are_told():
    with pytest.raises(ValueError, match=r"'blocks.7'.*blocks\.1, blocks\.0"):
        equipoise.balance(OwnModel(InGroups), routers=["blocks.7"])
    with pytest.raises(ValueError, match=r"(?s)embed \(Linear\) cannot be balanced.*LayerBalancer"):
        equipoise.balance(OwnModel(InGroups), routers="embed")
    with pytest.raises(ValueError, match="not both"):
        equipoise.balance(OwnModel(InGroups), routers="*", skip=["embed"])
    with pytest.raises(TypeError, match="names, patterns"):
        equipoise.balance(OwnModel(InGroups), routers=[3])


def test_a_probe_leaves_the_model_and_the_random_numbers_alone():
    model = OwnModel(FOUND[-1])
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    find_routers(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


class TwoNames(CalledExperts):
    """Modules with a second name in their layer: of the gate here, of the experts above it."""

    def __init__(self):
        super().__init__()
        self.router = self.gate


@pytest.mark.parametrize("layer", [CalledExperts, TwoNames])
def test_modules_with_two_names_keep_their_weights(layer):
    """torch.func.functional_call left random numbers in them."""
    model = OwnModel(layer)
    before = copy.deepcopy(model.state_dict())
    find_routers(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_gate_with_two_names_keeps_its_weights():
    class Layer(WithGate):
        def __init__(self):
            super().__init__()
            self.experts = self.ffns
            self.router = self.gate = self.selector

    model = OwnModel(Layer)
    before = copy.deepcopy(model.state_dict())
    find_routers(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_without_weights_is_probed():
    with torch.device("meta"):
        model = OwnModel(SoftmaxThenTopK)
    assert [router.spec.num_experts for router in find_routers(model).routers] == [EXPERTS] * 2


# ---- what cannot be attached


class Sorted(OwnLayer):
    def choose(self, hidden):
        scores, experts = self.gate(hidden).softmax(-1).sort(-1, descending=True)
        return scores[..., :TOP_K], experts[..., :TOP_K]


class OneByOne(OwnLayer):
    def choose(self, hidden):
        scores = self.gate(hidden).softmax(-1)
        first, one = scores.topk(1, dim=-1)
        second, two = scores.scatter(-1, one, 0.0).topk(1, dim=-1)
        return torch.cat((first, second), -1), torch.cat((one, two), -1)


class InChunks(SoftmaxThenTopK):
    def choose(self, hidden):
        if not self.training:
            return super().choose(hidden)
        halves = [super(InChunks, self).choose(part) for part in hidden.split(1)]
        return tuple(torch.cat(each) for each in zip(*halves))


@pytest.mark.parametrize(
    ("layer", "reason"), [(Sorted, "none that calls topk"), (OneByOne, "2 ch")]
)
def test_what_cannot_be_attached_is_told_with_the_remedy(layer, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        equipoise.balance(OwnModel(layer))
    assert TEN_LINES in str(caught.value)


def test_a_second_choice_in_one_forward_is_refused():
    model = OwnModel(InChunks)
    equipoise.balance(model)
    with pytest.raises(RuntimeError, match=r"blocks\.0 chose 3 times in one forward"):
        model(hidden_states())


def test_a_choice_that_is_not_seen_is_told():
    model = OwnModel(SoftmaxThenTopK)
    balancing = equipoise.balance(model)
    model(hidden_states()).sum().backward()
    balancing.step()
    model.blocks[1].choose = Sorted.choose.__get__(model.blocks[1])
    model(hidden_states()).sum().backward()
    with pytest.raises(RuntimeError, match=r"but were not counted: blocks\.1"):
        balancing.step()


def test_the_ten_lines_work():
    """Taken from the message, and put where it says."""
    parts = textwrap.dedent(TEN_LINES.partition(":\n")[2]).split("\n\n")
    init, choose, loop = (part.strip() for part in parts if part.strip())

    class Remedied(Sorted):
        def __init__(self):
            super().__init__()
            exec(init, {"equipoise": equipoise}, {"self": self, **SIZES})

        def choose(self, hidden):
            names = {"self": self, "hidden": hidden}
            exec(choose, names)
            return names["gates"], names["experts"]

    model = OwnModel(Remedied)
    for step in range(2):
        model(hidden_states(step)).sum().backward()
        loads = [block.balancer.counted.loads.tolist() for block in model.blocks]
        assert loads == model.received()
        exec(loop, {"equipoise": equipoise, "model": model})
    assert all(block.balancer.balancer.shift.any() for block in model.blocks)


SIZES = {"num_experts": EXPERTS, "top_k": TOP_K}


# ---- files and copies


def test_a_saved_shift_is_loaded(tmp_path):
    model = OwnModel(CalledExperts)
    balancing = equipoise.balance(model, "curvature")
    model(hidden_states()).sum().backward()
    balancing.step()
    balancing.save(tmp_path)
    twin = equipoise.balance(OwnModel(CalledExperts), "curvature").load(tmp_path)
    for mine, other in zip(balancing.routers, twin.routers):
        assert torch.equal(mine.applied_shift, other.applied_shift)


def test_a_copy_routes_alike_and_counts_nothing():
    model = OwnModel(SoftmaxThenTopK)
    balancing = equipoise.balance(model, "deepseek", update_rate=0.3)
    model(hidden_states()).sum().backward()
    balancing.step()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(hidden_states(1)), model(hidden_states(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert equipoise.balance(twin).routers[0].applied_shift.any()


def test_a_compiled_model_is_counted_and_evaluates_in_one_graph():
    torch._dynamo.reset()
    model = OwnModel(OneHot, layers=1)
    # its own loop over experts depends on data: one dense expert is enough here
    model.blocks[0].run_experts = lambda hidden, gates, experts: hidden * gates
    balancing = equipoise.balance(model, "deepseek", update_rate=0.3)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(hidden_states()).sum().backward()
    balancing.step()
    assert sum(loads_of(balancing)[0]) == 120
    model.eval()
    whole = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.allclose(whole(hidden_states(2)), model(hidden_states(2)), atol=1e-6)
