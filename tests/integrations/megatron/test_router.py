"""megatron-core's own router, layers, dispatcher and checkpoint as judges of the router that is
theirs but for the choice of experts. One process; two ranks are in test_router_on_ranks.py.
"""

import copy
import dataclasses
import os
from typing import ClassVar

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import equipoise
from equipoise.integrations import megatron
from tests.integrations.megatron import on_cpu
from tests.integrations.megatron.on_cpu import EXPERTS, HIDDEN, TOP_K, Model, config

pytest.importorskip("megatron.core")


@pytest.fixture(autouse=True)
def one_process():
    with on_cpu.parallel():
        torch.manual_seed(0)
        yield
    megatron.unhook_finalize()


def test_the_release_that_was_meant_is_tried():
    import megatron.core as megatron_core

    meant = os.environ.get("EQUIPOISE_TEST_MEGATRON", megatron_core.__version__)
    assert megatron_core.__version__ == meant


@pytest.fixture
def tracker():
    """Megatron's tracker, emptied, as a function of a name to values by layer."""
    return on_cpu.empty_tracker()


def has_setting(*names):
    from megatron.core.transformer.transformer_config import TransformerConfig

    return {*names} <= {field.name for field in dataclasses.fields(TransformerConfig)}


def needs_setting(*names):
    if not has_setting(*names):
        pytest.skip(f"this release has no {' and '.join(names)}")


def theirs_and_ours(settings, balancer="deepseek", **options):
    """Megatron's router and ours, with the same weights."""
    from megatron.core.transformer.moe.router import TopKRouter

    groups = on_cpu.groups_of_router()
    own = TopKRouter(config=settings, **groups)
    ours = megatron.router(balancer, **options)(config=settings, **groups)
    ours.weight.data.copy_(own.weight.data)
    for router in (own, ours):
        router.set_layer_number(1)
    return own, ours


def hidden_states(length=32, batch=2, dtype=torch.float32):
    return torch.randn(length, batch, HIDDEN, dtype=dtype) + 0.3


def skewed(model):
    """Some experts are liked by all tokens."""
    with torch.no_grad():
        for router in model.routers:
            router.weight.add_(torch.linspace(-0.3, 0.3, len(router.weight))[:, None])
    return model


def built(balancer="deepseek", builder_options=None, **settings):
    with megatron.install_router(balancer, **(builder_options or {})):
        return skewed(Model(config(**settings)))


def finalize(model):
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads

    finalize_model_grads([model])


def received(model):
    """What the experts of every layer are given, summed over forwards, as it comes."""
    sums = [torch.zeros(EXPERTS, dtype=torch.int64) for _ in model.layers]

    def listen(total, module, args):
        if torch.is_grad_enabled():
            total.add_(args[1])

    for layer, total in zip(model.layers, sums):
        layer.experts.register_forward_pre_hook(lambda m, a, total=total: listen(total, m, a))
    return sums


CHOICES = {
    "softmax after": {},
    "softmax before": {"moe_router_pre_softmax": True},
    "softmax, one expert": {"moe_router_pre_softmax": True, "moe_router_topk": 1},
    "sigmoid": {"moe_router_score_function": "sigmoid"},
    "sigmoid, one expert": {"moe_router_score_function": "sigmoid", "moe_router_topk": 1},
    "scaled": {"moe_router_score_function": "sigmoid", "moe_router_topk_scaling_factor": 2.5},
    "groups": {
        "moe_router_score_function": "sigmoid",
        "moe_router_num_groups": 4,
        "moe_router_group_topk": 2,
        "moe_router_topk": 4,
    },
    "groups, softmax": {
        "moe_router_pre_softmax": True,
        "moe_router_num_groups": 4,
        "moe_router_group_topk": 2,
    },
    "float64": {"moe_router_dtype": "fp64"},
    "capacity": {"moe_expert_capacity_factor": 1.0, "moe_token_drop_policy": "probs"},
    "root of softplus": {"moe_router_score_function": "sqrtsoftplus"},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_without_a_shift_it_is_megatrons_router(choice):
    """The same gates, map and gradients, to the last digit."""
    if choice == "root of softplus" and not on_cpu.release_is("0.18"):
        pytest.skip("this release has no sqrtsoftplus")
    if choice == "capacity" and not on_cpu.release_is("0.14"):
        with pytest.raises(ValueError, match="moe_expert_capacity_factor is set"):
            theirs_and_ours(config(**CHOICES[choice]))
        return
    own, ours = theirs_and_ours(config(**CHOICES[choice]))
    hidden = hidden_states()
    answers = []
    for router in (own, ours):
        given = hidden.clone().requires_grad_()
        gates, chosen = router(given)
        gates.square().sum().backward()
        answers.append((gates, chosen, given.grad, router.weight.grad))
    for here, there in zip(*answers):
        assert torch.equal(here, there)
    assert answers[0][1].any(0).all() or choice != "softmax after"


def test_settings_that_change_later_are_followed():
    """Megatron reads its config in every forward."""
    own, ours = theirs_and_ours(settings := config())
    hidden = hidden_states()
    before = ours(hidden)[0]
    settings.moe_router_pre_softmax = True
    assert torch.equal(ours(hidden)[0], own(hidden)[0])
    assert not torch.equal(ours(hidden)[0], before)
    settings.moe_router_pre_softmax = False
    settings.moe_router_num_groups, settings.moe_router_group_topk = 4, 2
    with pytest.raises(ValueError, match="needs moe_router_pre_softmax"):
        ours(hidden)


@pytest.mark.parametrize("choice", ["softmax after", "softmax before", "sigmoid", "scaled"])
def test_a_shift_moves_the_choice_and_enters_no_gate(choice):
    own, ours = theirs_and_ours(config(**CHOICES[choice]))
    ours.balancer.shift.copy_(torch.linspace(-0.2, 0.2, EXPERTS))
    hidden = hidden_states()
    logits = own.gating(hidden).view(-1, EXPERTS)
    score = torch.sigmoid if choice in ("sigmoid", "scaled") else lambda x: x.softmax(-1)
    gates, chosen = ours(hidden)
    wanted = (score(logits) + ours.balancer.shift).topk(TOP_K).indices
    assert torch.equal(chosen, torch.zeros_like(chosen).scatter(1, wanted, True))
    expected = score(logits).gather(1, wanted)
    if choice != "softmax before":
        expected = expected / expected.sum(-1, keepdim=True)
    expected = expected * (ours.config.moe_router_topk_scaling_factor or 1.0)
    torch.testing.assert_close(gates.gather(1, wanted), expected)
    assert not torch.equal(chosen, own(hidden)[1])


@pytest.mark.parametrize(
    "losses",
    [
        {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.1},
        {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.1},
        {
            "moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss", "global_aux_loss"],
            "moe_aux_loss_coeff": [0.1, 0.05, 0.02],
        },
        {"moe_z_loss_coeff": 0.1},
    ],
    ids=["aux", "sequence", "several", "z"],
)
def test_megatrons_losses_stay(losses, tracker):
    if isinstance(losses.get("moe_aux_loss_coeff"), list) and not on_cpu.release_is("0.15"):
        pytest.skip("one loss at a time, and none global, before 0.15")
    own, ours = theirs_and_ours(config(**losses))
    hidden = hidden_states()
    gradients, values = [], []
    for router in (own, ours):
        gates, _ = router(hidden)
        gates.sum().backward()
        gradients.append(router.weight.grad)
        values.append({name: value.clone() for name, value in tracker().items()})
        on_cpu.empty_tracker()
    assert torch.equal(*gradients)
    assert values[0].keys() == values[1].keys() != set()
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])
    # gates of one token sum to a constant: without a loss there would be hardly a gradient
    assert gradients[0].abs().max() > 1e-4


def test_counts_are_what_the_dispatcher_received():
    model = built("curvature")
    sums = received(model)
    for _ in range(3):
        model(hidden_states()).sum().backward()
    assert all(router.loads is None for router in model.routers)
    finalize(model)
    for router, total in zip(model.routers, sums):
        assert torch.equal(router.loads, total)
        assert router.loads.sum() == 3 * 64 * TOP_K
        assert router.loads.dtype == torch.int64


@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall"])
@pytest.mark.parametrize("balancer", ["curvature", "quantile"])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_a_skewed_router_is_balanced(dispatcher, balancer, score):
    """In their training loop: the update is in finalize_model_grads."""
    model = built(balancer, moe_router_score_function=score, moe_token_dispatcher_type=dispatcher)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    imbalance = []
    for _ in range(20):
        for _ in range(2):
            model(hidden_states(64)).square().mean().backward()
        finalize(model)
        optimizer.step()
        optimizer.zero_grad()
        imbalance.append(
            sum(equipoise.metrics(router.loads)["imbalance"] for router in model.routers) / 2
        )
    assert imbalance[0] > 0.9
    assert sum(imbalance[-5:]) / 5 < 0.25


def test_a_step_is_the_balancers_own():
    model = built("smebu")
    twins = [equipoise.balancer("smebu", EXPERTS, top_k=TOP_K) for _ in model.routers]
    for _ in range(4):
        model(hidden_states()).sum().backward()
        finalize(model)
        for router, twin in zip(model.routers, twins):
            loads = router.loads
            twin.update(equipoise.Tally(loads, loads[None], twin.steps.clone()))
            assert torch.equal(router.balancer.shift, twin.shift)
            assert twin.shift.any()


def count_once(forward):
    """Loads of two micro-batches of a model that was run in this way."""
    torch.manual_seed(1)
    model = built("curvature", **forward.settings)
    calls = []
    model.routers[0].register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    for _ in range(2):
        forward(model, hidden_states().requires_grad_()).sum().backward()
    assert tuple(calls) == forward.gradients * 2
    # none is awaited that has been
    assert all(router.counter._without_gradients == 0 for router in model.routers)
    finalize(model)
    return [router.loads for router in model.routers]


class Plainly:
    settings: ClassVar = {}
    gradients = (True,)
    """whether they are on, in each forward of the router"""

    def __call__(self, model, hidden):
        return model(hidden)


class MoERecomputed(Plainly):
    settings: ClassVar = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
    gradients = (
        False,
        True,
    )


class AllRecomputed(Plainly):
    gradients = (
        False,
        True,
    )

    def __call__(self, model, hidden):
        from megatron.core.tensor_parallel import checkpoint as recompute

        return recompute(model, False, hidden)


class TwiceRecomputed(MoERecomputed):
    """The layer's recomputation inside of the model's."""

    gradients = (
        False,
        False,
        True,
    )
    __call__ = AllRecomputed.__call__


class RecomputedByTorch(Plainly):
    gradients = (
        True,
        True,
    )

    def __call__(self, model, hidden):
        return checkpoint(model, hidden, use_reentrant=False)


@pytest.mark.parametrize(
    "forward", [MoERecomputed, AllRecomputed, TwiceRecomputed, RecomputedByTorch]
)
def test_recomputation_counts_once(forward):
    for here, there in zip(count_once(forward()), count_once(Plainly()), strict=True):
        assert torch.equal(here, there)


def test_several_forwards_before_their_backwards_count_once():
    """As under pipeline parallelism."""
    model = built("curvature")
    outputs = [AllRecomputed()(model, hidden_states().requires_grad_()) for _ in range(3)]
    for output in outputs:
        output.sum().backward()
    finalize(model)
    assert [int(router.loads.sum()) for router in model.routers] == [3 * 64 * TOP_K] * 2


def test_evaluation_counts_nothing():
    model = built("curvature")
    model(hidden_states()).sum().backward()
    before = [router.counter.tally.loads.clone() for router in model.routers]
    model.eval()(hidden_states())
    with torch.no_grad():
        model(hidden_states())
        model.train()(hidden_states())
    for router, loads in zip(model.routers, before):
        assert torch.equal(router.counter.tally.loads, loads)
    finalize(model)
    with pytest.raises(RuntimeError, match="counted nothing since the last step"):
        finalize(model)
    # a model that does not train is left alone
    model.eval()
    finalize(model)


def test_a_run_without_gradients_makes_no_later_recomputation_count():
    model = built("curvature")
    with torch.no_grad():
        model(hidden_states())
    model(hidden_states()).sum().backward()
    finalize(model)
    assert int(model.routers[0].loads.sum()) == 64 * TOP_K
    RecomputedByTorch()(model, hidden_states().requires_grad_()).sum().backward()
    finalize(model)
    assert int(model.routers[0].loads.sum()) == 64 * TOP_K


def test_padding_is_routed_and_not_counted():
    if not on_cpu.release_is("0.16"):
        pytest.skip("this release has no padding mask")
    model = built("curvature")
    hidden = hidden_states(32, 2)
    padding = torch.zeros(2, 32, dtype=torch.bool)  # (batch, length), as Megatron has it
    padding[0, 20:] = padding[1, 5:] = True
    router = model.routers[0]
    logits = router.gating(hidden).view(-1, EXPERTS)
    model(hidden, padding_mask=padding).sum().backward()
    finalize(model)
    chosen = logits.topk(TOP_K).indices[~padding.T.reshape(-1)]
    assert torch.equal(router.loads, chosen.flatten().bincount(minlength=EXPERTS))
    assert router.loads.sum() == 25 * TOP_K
    assert router(hidden, padding.T)[1].sum() == 64 * TOP_K


def test_layers_may_have_other_numbers_of_experts():
    model = built("curvature")
    other = built("curvature", num_moe_experts=12)
    model.layers.append(other.layers[0])
    model(hidden_states()).sum().backward()
    finalize(model)
    assert [len(router.loads) for router in model.routers] == [EXPERTS, EXPERTS, 12]
    assert all(router.balancer.shift.any() for router in model.routers)


def test_frozen_routers_rest():
    model = built("deepseek")
    first, second = model.routers
    first.frozen_expert_bias = True
    model(hidden_states()).sum().backward()
    finalize(model)
    assert not first.balancer.shift.any()
    assert first.balancer.steps == 0
    assert second.balancer.shift.any()
    first.frozen_expert_bias = False
    first.weight.requires_grad_(False)
    model(hidden_states()).sum().backward()
    finalize(model)
    assert not first.balancer.shift.any()
    assert second.balancer.steps == 2
    # where no router trains (adapters do), balancing them is what is wanted
    second.weight.requires_grad_(False)
    model(hidden_states().requires_grad_()).sum().backward()
    finalize(model)
    assert first.balancer.shift.any()


def test_forced_balance_teaches_nothing():
    needs_setting("moe_router_force_load_balancing")
    model = built("deepseek", moe_router_force_load_balancing=True)
    for router in model.routers:
        router.balancer.shift.fill_(0.0)[0] = 100.0
    sums = received(model)
    model(hidden_states(256)).sum().backward()
    finalize(model)
    assert equipoise.metrics(sums[0])["max_violation"] < 0.5
    assert all(router.loads is None for router in model.routers)
    assert all(router.balancer.steps == 0 for router in model.routers)


def test_the_step_can_be_ones_own():
    model = skewed(Model(config(), None))
    with pytest.raises(ValueError, match="no router of equipoise's"):
        megatron.router_step(model)
    model = built("deepseek", {"step_in_finalize": False})
    model(hidden_states()).sum().backward()
    finalize(model)
    assert not model.routers[0].balancer.shift.any()
    megatron.router_step([model])
    assert all(router.balancer.shift.any() for router in model.routers)


def test_what_is_never_updated_is_told():
    from equipoise.integrations.megatron import counting

    _, router = theirs_and_ours(config())
    router.counter.add(router.take_tally())
    counting._TOO_MANY_FORWARDS, before = 3, counting._TOO_MANY_FORWARDS
    try:
        hidden = hidden_states()
        for _ in range(2):
            router(hidden)
        with pytest.warns(UserWarning, match="is megatron-core's finalize_model_grads called"):
            router(hidden)
    finally:
        counting._TOO_MANY_FORWARDS = before


def test_the_state_is_in_the_checkpoint():
    model = built("curvature")
    for _ in range(3):
        model(hidden_states()).sum().backward()
        finalize(model)
    state = copy.deepcopy(model.state_dict())
    assert "layers.1.router.balancer.shift" in state
    after = built("curvature")
    after.load_state_dict(state)
    hidden = hidden_states()
    for each in (model, after):
        each(hidden).sum().backward()
        finalize(each)
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, after.state_dict()[name]), name


@pytest.mark.parametrize("offsets", [(), ((0, 0, 1),)], ids=["layers apart", "layers stacked"])
def test_the_state_is_in_a_distributed_checkpoint(tmp_path, offsets):
    """Stacked layers are one tensor with a layer axis, as TransformerBlock saves equal layers."""
    from megatron.core import dist_checkpointing

    if not on_cpu.release_is("0.13"):
        pytest.skip("the checkpoints of 0.12 do not work with the torch that is here")
    model, after = built("curvature"), built("curvature")
    for _ in range(3):
        model(hidden_states()).sum().backward()
        finalize(model)
    first, second = model.routers[0], after.routers[0]
    tensors = first.sharded_state_dict("router.", offsets)
    assert "router.balancer.direction.gain" in tensors
    dist_checkpointing.save(tensors, str(tmp_path))
    loaded = dist_checkpointing.load(second.sharded_state_dict("router.", offsets), str(tmp_path))
    second.load_state_dict({name.removeprefix("router."): each for name, each in loaded.items()})
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert second.balancer.steps == 3
    assert second.balancer.shift.dtype == torch.float32


def test_precision_survives_megatrons_casts():
    from megatron.core.transformer.module import Float16Module

    model = built("curvature", bf16=True, params_dtype=torch.bfloat16)
    for _ in range(2):
        model(hidden_states(dtype=torch.bfloat16)).sum().backward()
        finalize(model)
    shift = model.routers[0].balancer.shift.clone()
    cast = Float16Module(model.config, model)
    router = cast.module.routers[0]
    assert router.weight.dtype == torch.bfloat16
    assert router.balancer.shift.dtype == torch.float32
    assert torch.equal(router.balancer.shift, shift)


def test_loads_are_in_megatrons_tracker(tracker):
    model = built("deepseek")
    for _ in range(3):
        model(hidden_states()).sum().backward()
    finalize(model)
    shown = tracker()
    for name in ("imbalance", "max_violation"):
        expected = [equipoise.metrics(router.loads)[name] for router in model.routers]
        # it is divided by the number of micro-batches when it is shown
        torch.testing.assert_close(shown[f"moe_{name}"] / 3, torch.tensor(expected))


def test_layers_of_multi_token_prediction_come_last(tracker):
    if not on_cpu.release_is("0.17"):
        pytest.skip("this release does not tell a router that it is of such a layer")
    settings: ClassVar = config(mtp_num_layers=1)
    builder = megatron.router("deepseek")
    router = builder(config=settings, is_mtp_layer=True, **on_cpu.groups_of_router())
    router.set_layer_number(1)
    router(hidden_states())[0].sum().backward()
    megatron.router_step(router)
    shown = tracker()["moe_imbalance"]
    assert shown.shape == (3,)
    assert shown[2] > 0
    assert not shown[:2].any()


REFUSED = {
    "moe_router_enable_expert_bias": (
        {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"}
    ),
    "moe_router_load_balancing_type": {"moe_router_load_balancing_type": "sinkhorn"},
    "moe_router_fusion": {"moe_router_fusion": True},
    "moe_enable_routing_replay": {"moe_enable_routing_replay": True},
    "moe_router_pre_softmax": {
        "moe_router_num_groups": 4,
        "moe_router_group_topk": 2,
    },
    "less than moe_router_group_topk": {
        "moe_router_num_groups": 4,
        "moe_router_group_topk": 4,
        "moe_router_pre_softmax": True,
    },
    "moe_router_topk_of_tomorrow": {"moe_router_topk_of_tomorrow": 3},
    "cuda_graph_impl": {"cuda_graph_impl": "local"},
    "enable_cuda_graph": {"enable_cuda_graph": True},
    "moe_router_score_function": {"moe_router_score_function": "tanh"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(name):
    settings: ClassVar = config()
    if name == "moe_router_topk_of_tomorrow":
        kind = dataclasses.make_dataclass(
            "Tomorrow", [(name, int, 0)], bases=(type(settings),), kw_only=True
        )
        settings.__class__ = kind
    elif not has_setting(*REFUSED[name]):
        pytest.skip("this release has no such setting")
    for key, value in REFUSED[name].items():
        setattr(settings, key, value)
    builder = megatron.router("deepseek")
    with pytest.raises(ValueError, match=name):
        builder(config=settings, **on_cpu.groups_of_router())


def test_balancers_without_a_shift_are_refused():
    for name in ("aux", "sinkhorn", "expert_choice"):
        with pytest.raises(ValueError, match=r"has no shift|adds a penalty"):
            built(name)


def test_megatrons_rate_is_that_of_a_sign_rule():
    def rate_of(balancer, at, **options):
        model = built(balancer, options, moe_router_bias_update_rate=at)
        model(hidden_states()).sum().backward()
        finalize(model)
        return float(model.routers[0].balancer.shift.abs().max())

    assert rate_of("deepseek", 1e-2) == pytest.approx(1e-2)
    assert rate_of("deepseek", 1e-3, update_rate=1e-2) == pytest.approx(1e-2)
    assert rate_of("deepseek", 1e-2, update_rate=1e-2) == pytest.approx(1e-2)
    with pytest.raises(ValueError, match=r"0\.02.*deepseek has update_rate=0\.01"):
        rate_of("deepseek", 2e-2, update_rate=1e-2)
    with pytest.raises(ValueError, match=r"curvature has another"):
        rate_of("curvature", 2e-2)


def test_installing_is_undone():
    from megatron.core.distributed import finalize_model_grads as package  # noqa: F401
    from megatron.core.transformer.moe.router import TopKRouter

    own, ours = (Model(config()), built())
    assert all(type(router) is TopKRouter for router in own.routers)
    assert all(isinstance(router, TopKRouter) for router in ours.routers)
    assert all(type(router) is not TopKRouter for router in ours.routers)
    assert type(Model(config()).routers[0]) is TopKRouter
    installed = megatron.install_router("deepseek")
    with pytest.raises(ValueError, match="installed in megatron-core already"):
        megatron.install_router("deepseek")
    installed.remove()


def test_a_builder_goes_into_the_spec():
    if "router" not in on_cpu.submodules().__dataclass_fields__:
        pytest.skip("before 0.16 there is no place for a builder: install_router")
    builder = megatron.router(lambda experts, k: equipoise.balancer("quantile", experts, top_k=k))
    model = Model(config(), builder)
    model(hidden_states()).sum().backward()
    finalize(model)
    assert all(router.balancer.called == "quantile" for router in model.routers)
    assert all(router.balancer.shift.any() for router in model.routers)


def test_megatrons_own_function_stays_a_choice():
    """install() and the router in one process: each serves its own models."""
    installed = megatron.install("deepseek", top_k=TOP_K)
    own = skewed(
        Model(config(moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid"))
    )
    ours = built("deepseek")
    for model in (own, ours):
        model(hidden_states()).sum().backward()
        finalize(model)
    assert own.routers[0].expert_bias.any()
    assert ours.routers[0].balancer.shift.any()
    installed.remove()
