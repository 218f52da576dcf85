"""BalancedTopKRouter and BalancingHook over a stand-in of torchtitan (stand_in.py)."""

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import equipoise
from equipoise.balancing.penalties import ZLoss
from equipoise.integrations.torchtitan import BalancingHook
from equipoise.integrations.torchtitan.counted_choice import CountedChoice
from tests.integrations.torchtitan.stand_in import (
    Layers,
    MoE,
    OneProcess,
    Router,
    stand_in_torchtitan,
)
from tests.ranks import on_ranks


@pytest.fixture
def router_class():
    with stand_in_torchtitan() as found:
        yield found


def make_moe(router_class, balancer="curvature", *, with_bias=True, **config):
    torch.manual_seed(0)
    router = router_class(router_class.Config(balancer=balancer, **config))
    nn.init.normal_(router.gate.weight, std=0.3)
    return MoE(router, with_bias=with_bias)


def hooked(*moes, dims=None, rate=0.0):
    model = Layers(*moes).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    hook = BalancingHook()
    hook(optimizer, [model], dims or OneProcess())
    return model, optimizer, hook


def hidden_of(seed=0, tokens=96):
    return torch.randn(tokens, 16, generator=torch.Generator().manual_seed(seed)) + 0.5


def twin_update(twin, batches, weight, score):
    """The same step by hand: route, tally, update."""
    tally = 0
    for hidden in batches:
        scores = getattr(torch, score)(hidden @ weight.T, *([-1] if score == "softmax" else []))
        tally = tally + twin.tally(scores, twin.route(scores))
    twin.update(tally)


@pytest.mark.parametrize("balancer", ["curvature", "quantile", "smebu"])
@pytest.mark.parametrize("score", ["sigmoid", "softmax"])
def test_it_steps_as_the_balancer_does_by_hand(router_class, balancer, score):
    moe = make_moe(router_class, balancer, score_func=score)
    model, optimizer, _hook = hooked(moe)
    twin = equipoise.balancer(balancer, 8, top_k=2)
    for step in range(4):
        batches = [hidden_of(2 * step), hidden_of(2 * step + 1)]
        for hidden in batches:
            model(hidden).sum().backward()
        optimizer.step()
        twin_update(twin, batches, moe.router.gate.weight.detach(), score)
        assert torch.equal(moe.expert_bias_E, twin.shift)
        assert not moe.tokens_per_expert_E.any()
    assert twin.shift.any()


def test_only_what_trains_is_counted_and_recomputation_is_not(router_class):
    moes = [make_moe(router_class), make_moe(router_class, num_experts=12, top_k=3)]
    model, optimizer, hook = hooked(*moes)
    checkpoint(model, hidden_of(0).requires_grad_(), use_reentrant=False).sum().backward()
    model(hidden_of(1)).sum().backward()
    expected = [moe.seen[0] + moe.seen[-1] for moe in moes]
    model.eval()(hidden_of(2)).sum().backward()
    with torch.no_grad():
        model.train()(hidden_of(3))
    optimizer.step()
    assert [len(moe.seen) for moe in moes] == [5, 5]
    for tally, loads in zip(hook.tallies.values(), expected, strict=True):
        assert torch.equal(tally.loads, loads)


def test_a_compiled_layer_counts_in_one_graph(router_class):
    torch._dynamo.reset()
    moe = make_moe(router_class)
    _model, optimizer, hook = hooked(moe)
    compiled = torch.compile(moe.router, backend="aot_eager", fullgraph=True)
    compiled(hidden_of(0), moe.expert_bias_E)[0].sum().backward()
    optimizer.step()
    _, experts, _ = copy.deepcopy(moe.router)(hidden_of(0), None)
    assert int(hook.tallies["layers.0"].loads.sum()) == experts.numel()


def test_groups_limit_the_choice(router_class):
    moe = make_moe(router_class, num_expert_groups=4, num_limited_groups=1)
    hooked(moe)
    _, experts, _ = moe.router(hidden_of(), None)
    assert torch.equal(experts[:, 0] // 2, experts[:, 1] // 2)


def test_in_evaluation_the_layers_bias_chooses(router_class):
    moe = make_moe(router_class).eval()
    bias = torch.tensor([9.0, 8.0, 0, 0, 0, 0, 0, 0])
    _, experts, scores = moe.router(hidden_of(), bias)
    assert torch.equal(experts, torch.tensor([[0, 1]]).expand(96, 2))
    gates, *_ = moe.router(hidden_of(), bias)
    assert torch.equal(gates, scores[:, :2])


def test_states_are_saved_and_resumed_exactly(router_class):
    model, optimizer, _ = hooked(make_moe(router_class, "quantile"), rate=0.01)
    resumed, its_optimizer, _its_hook = hooked(make_moe(router_class, "quantile"), rate=0.01)
    for step in range(3):
        model(hidden_of(step)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    resumed.load_state_dict(copy.deepcopy(model.state_dict()))
    for each, by in ((model, optimizer), (resumed, its_optimizer)):
        each(hidden_of(9)).sum().backward()
        by.step()
    assert "layers.0.router.balancer.direction.width" in model.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert resumed.layers["0"].router.balancer.steps == 4


def test_a_state_that_lacks_the_balancer_is_noticed(router_class):
    moe = make_moe(router_class)
    bare = {name: value for name, value in moe.state_dict().items() if "balancer" not in name}
    with pytest.raises(RuntimeError, match=r"Missing key.*router\.balancer\.shift"):
        moe.load_state_dict(bare)
    wrong = moe.state_dict() | {"router.balancer.shift": torch.zeros(9)}
    with pytest.raises(RuntimeError, match="cannot be resized"):
        moe.load_state_dict(wrong)


def test_fresh_memory_is_given_its_first_values(router_class):
    with torch.device("meta"):
        moe = make_moe(router_class)
    assert moe.router.balancer.shift.is_meta
    moe.to_empty(device="cpu")
    assert not moe.router.balancer.shift.any()
    moe.router.balancer.shift.fill_(3.0)
    moe.router._init_self_buffers(buffer_device=torch.device("cpu"))
    assert not moe.router.balancer.shift.any()
    assert not moe.router.choice.counts.any()


def test_no_cast_reaches_shift_or_counts(router_class):
    moe = make_moe(router_class).bfloat16()
    assert moe.router.balancer.shift.dtype == torch.float32
    assert moe.router.choice.counts.dtype == torch.int64
    assert not list(moe.router.buffers())


def test_forced_routing_moves_nothing(router_class):
    moe = make_moe(router_class, _debug_force_load_balance=True)
    model, optimizer, hook = hooked(moe)
    model(hidden_of()).sum().backward()
    optimizer.step()
    assert hook.tallies["layers.0"].loads.tolist() == [24] * 8
    assert not moe.router.balancer.shift.any()


def test_routers_of_a_built_model_are_converted(router_class):
    from equipoise.integrations.torchtitan.model_spec import convert_routers

    model = Layers(MoE(Router(Router.Config())))
    gate = model.layers["0"].router.gate.weight
    convert_routers(model, "quantile", bins=64)
    router = model.layers["0"].router
    assert isinstance(router, router_class)
    assert router.gate.weight is gate
    assert router.balancer.direction.bins == 64


def test_metrics_go_to_torchtitans_processor(router_class):
    model, optimizer, hook = hooked(make_moe(router_class), make_moe(router_class))
    assert hook.metrics() == {}
    model(hidden_of()).sum().backward()
    optimizer.step()
    logged = []

    class Processor:
        def log(self, step, average, most, norm, extra_metrics=None):
            logged.append((step, extra_metrics))

    processor = Processor()
    hook.log_with(processor)
    processor.log(1, 0.5, 0.5, 1.0, extra_metrics={"lr": 1e-3})
    processor.log(2, 0.5, 0.5, 1.0, {"lr": 1e-3})
    violations = [
        float(equipoise.metrics(tally.loads)["max_violation"]) for tally in hook.tallies.values()
    ]
    for step, given in enumerate(logged, start=1):
        assert given == (step, {"lr": 1e-3, **hook.metrics()})
    assert hook.metrics()["moe_balance/worst_max_violation"] == max(violations)
    assert len(hook.metrics()) == 6


def test_what_is_not_supported_is_refused_by_name(router_class):
    with pytest.raises(ValueError, match=r"sinkhorn.*has no shift"):
        CountedChoice("sinkhorn", 8, 2)
    with pytest.raises(ValueError, match=r"aux.*carries a penalty"):
        CountedChoice("aux", 8, 2)

    def carrying(num_experts, top_k):
        made = equipoise.balancer("deepseek", num_experts, top_k=top_k)
        return made.carry(ZLoss(1e-3))

    with pytest.raises(ValueError, match="carries a penalty"):
        CountedChoice(carrying, 8, 2)
    with pytest.raises(ValueError, match="no balancer 'curvatur'"):
        make_moe(router_class, "curvatur")
    with pytest.raises(ValueError, match="sharding_config"):
        make_moe(router_class, sharding_config=object())
    with pytest.raises(ValueError, match="no score function"):
        make_moe(router_class, score_func="tanh")
    with pytest.raises(TypeError, match="padding_mask_T"):
        make_moe(router_class).router(hidden_of(), None, padding_mask_T=torch.zeros(96))


def test_steps_that_would_be_silently_wrong_are_refused(router_class):
    with pytest.raises(RuntimeError, match="nothing will update its balancer"):
        make_moe(router_class)(hidden_of())
    with pytest.raises(ValueError, match=r"routers are not ours: layers\.0 \(Router\)"):
        hooked(MoE(Router(Router.Config())))
    moe = make_moe(router_class)
    model, optimizer, hook = hooked(moe)
    with pytest.raises(RuntimeError, match=r"layers\.0 counted no token"):
        optimizer.step()
    model(hidden_of()).sum().backward()
    # as a second hook would
    moe.expert_bias_E.add_(1.0)
    with pytest.raises(RuntimeError, match=r"layers\.0 was written"):
        optimizer.step()
    hook.take_biases()
    model(hidden_of()).sum().backward()
    optimizer.step()
    assert moe.router.balancer.shift.mean() > 0.5


def test_a_layer_without_a_bias_is_balanced_too(router_class):
    moe = make_moe(router_class, with_bias=False)
    model, optimizer, hook = hooked(moe)
    first = None
    for step in range(30):
        model(hidden_of(step)).sum().backward()
        optimizer.step()
        first = hook.metrics() if first is None else first
    assert hook.metrics()["moe_balance/imbalance"] < first["moe_balance/imbalance"] / 2


class World:
    def get_group(self):
        return dist.group.WORLD


class TwoRanks(OneProcess):
    def get_optional_mesh(self, name):
        return World()


def count_on_two_ranks(rank, collectives):
    own = dist.all_reduce
    calls = []
    dist.all_reduce = lambda *args, **kwargs: (calls.append(1), own(*args, **kwargs))[1]
    with stand_in_torchtitan() as router_class:
        moes = [make_moe(router_class), make_moe(router_class, num_experts=12, top_k=3)]
        model, optimizer, hook = hooked(*moes, dims=TwoRanks())
        model(hidden_of(rank)).sum().backward()
        optimizer.step()
        assert len(calls) == collectives
        for moe, tally in zip(moes, hook.tallies.values(), strict=True):
            loads = moe.seen[0].clone()
            own(loads)
            assert torch.equal(tally.loads, loads)
            both = [torch.empty_like(moe.expert_bias_E) for _ in range(2)]
            dist.all_gather(both, moe.expert_bias_E)
            assert torch.equal(*both)


def test_two_ranks_sum_all_layers_in_one_collective(tmp_path):
    on_ranks(functools.partial(count_on_two_ranks, collectives=1), 2, tmp_path)
