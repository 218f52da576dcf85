"""Our router in torchtitan's own MoE layer, in one process. Skipped where torchtitan is missing;
test_real_releases.py fetches it and runs this file.
"""

import copy

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import equipoise
from equipoise.integrations.torchtitan import BalancingHook
from tests.integrations.torchtitan.real_torchtitan import (
    Alone,
    Model,
    build_layer,
    has_configs,
    hidden_of,
    skip_before_0_2_1,
    watch_loads,
)


def hooked(*layers, rate=0.0):
    model = Model(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    hook = BalancingHook()
    hook(optimizer, [model], Alone())
    return model, optimizer, hook


@pytest.mark.parametrize("balancer", ["curvature", "quantile", "deepseek"])
def test_loads_are_what_the_experts_received(balancer):
    layers = [
        build_layer(balancer=balancer),
        build_layer(12, 3, balancer=balancer, score_func="softmax"),
    ]
    seen = [watch_loads(layer) for layer in layers]
    model, optimizer, hook = hooked(*layers, rate=1e-3)
    for step in range(3):
        for micro in range(2):
            model(hidden_of(seed=2 * step + micro)).square().mean().backward()
        model.eval()(hidden_of()).sum().backward()
        with torch.no_grad():
            model.train()(hidden_of())
        optimizer.step()
        for layer, tally in zip(seen, hook.tallies.values(), strict=True):
            assert tally.loads.dtype == torch.int64
            assert torch.equal(tally.loads, layer[0] + layer[1])
            layer.clear()


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_a_skewed_router_is_balanced(score):
    layer = build_layer(balancer="curvature", score_func=score)
    model, optimizer, hook = hooked(layer)
    imbalance = []
    for step in range(40):
        model(hidden_of(tokens=256, seed=step)).sum().backward()
        optimizer.step()
        imbalance.append(hook.metrics()["moe_balance/imbalance"])
    print(f"imbalance {imbalance[0]:.3f} -> {sum(imbalance[-5:]) / 5:.3f}")
    assert sum(imbalance[-5:]) / 5 < imbalance[0] / 3


def save_matmuls(context, op, *args, **kwargs):
    saved = (torch.ops.aten.mm.default, torch.ops.aten.topk.default, torch.ops.aten.max.default)
    return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE


def checkpointed(block, kind):
    """As torchtitan's FullAC and SelectiveAC wrap a block."""
    if kind == "full":
        return checkpoint_wrapper(block, early_stop=False)
    return checkpoint_wrapper(
        block,
        context_fn=lambda: create_selective_checkpoint_contexts(save_matmuls),
        early_stop=False,
    )


@pytest.mark.parametrize("kind", ["none", "full", "selective"])
@pytest.mark.parametrize("compiled", [False, True])
def test_recomputed_and_compiled_blocks_count_once(kind, compiled):
    torch._dynamo.reset()
    layer = build_layer(balancer="curvature")
    plain = copy.deepcopy(layer)
    model, optimizer, hook = hooked(layer)
    if kind != "none":
        model.layers["0"] = checkpointed(model.layers["0"], kind)
    if compiled:
        torch._dynamo.config.capture_scalar_outputs = True
        torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
        model.layers["0"].compile(backend="aot_eager", fullgraph=has_configs())
    twin, twin_optimizer, twin_hook = hooked(plain)
    for step in range(3):
        for each, by in ((model, optimizer), (twin, twin_optimizer)):
            each(hidden_of(seed=step)).sum().backward()
            by.step()
        ours, theirs = hook.tallies["layers.0.moe"], twin_hook.tallies["layers.0.moe"]
        assert int(ours.loads.sum()) == 64 * 2
        assert torch.equal(ours.loads, theirs.loads)
        for name, part in theirs.parts.items():
            assert torch.equal(ours.parts[name], part), name


GROUPS = {"num_expert_groups": 4, "num_limited_groups": 2}


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "more",
    [{}, {"route_norm": True, "route_scale": 2.5}, GROUPS, {"_debug_force_load_balance": True}],
)
def test_without_a_shift_it_routes_as_torchtitan(score, more):
    if more is GROUPS:
        skip_before_0_2_1("has no groups")
    theirs = build_layer(score_func=score, **more)
    ours = build_layer(balancer="none", score_func=score, **more)
    ours.load_state_dict(theirs.state_dict(), strict=False)
    hooked(ours)
    hidden = hidden_of()
    hidden = hidden if has_configs() else hidden.flatten(0, 1)
    bias = torch.linspace(-0.1, 0.1, 8)
    for training in (True, False):
        given = None if training else bias
        ours.train(training), theirs.train(training)
        gates, experts, third = ours.router(hidden, given)
        their_gates, their_experts, their_third = theirs.router(hidden, given)
        assert torch.equal(experts.sort().values, their_experts.sort().values)
        order, their_order = experts.argsort(), their_experts.argsort()
        torch.testing.assert_close(
            gates.gather(-1, order), their_gates.gather(-1, their_order), rtol=0, atol=1e-7
        )
        assert torch.equal(third.float(), their_third.float())


def test_forced_balance_counts_but_moves_nothing():
    layer = build_layer(balancer="curvature", _debug_force_load_balance=True)
    model, optimizer, hook = hooked(layer)
    model(hidden_of()).sum().backward()
    optimizer.step()
    assert hook.tallies["layers.0.moe"].loads.tolist() == [16] * 8
    assert not layer.router.balancer.shift.any()


def test_under_autocast_and_in_bfloat16_counts_and_shift_stay_exact():
    skip_before_0_2_1("adds bfloat16 to float32 behind its router, under autocast")
    layer = build_layer(balancer="deepseek")
    model, optimizer, hook = hooked(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(hidden_of()).sum().backward()
    model.bfloat16()
    hidden = hidden_of().bfloat16()
    model(hidden).sum().backward()
    optimizer.step()
    assert int(hook.tallies["layers.0.moe"].loads.sum()) == 2 * 64 * 2
    shift = layer.router.balancer.shift
    assert shift.dtype == torch.float32
    torch.testing.assert_close(shift.abs(), torch.full((8,), 1e-3))


def test_a_model_made_on_the_meta_device_gets_its_first_values():
    with torch.device("meta"):
        layer = build_layer(balancer="quantile")
    layer.to_empty(device="cpu")
    fresh = equipoise.balancer("quantile", 8, top_k=2)
    for name, value in fresh.state_dict().items():
        assert torch.equal(layer.router.balancer.state_dict()[name], value), name
    assert not layer.router.choice.counts.any()


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        model(hidden_of(seed=step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("balancer", ["curvature", "quantile", "smebu"])
def test_a_training_is_resumed_exactly_from_a_distributed_checkpoint(balancer, tmp_path):
    import torch.distributed.checkpoint as dcp

    model, optimizer, hook = hooked(build_layer(balancer=balancer), rate=1e-3)
    train(model, optimizer, 4)
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path)
    train(model, optimizer, 3, first=4)

    resumed, its_optimizer, its_hook = hooked(build_layer(balancer=balancer), rate=1e-3)
    state = resumed.state_dict()
    dcp.load({"model": state}, checkpoint_id=tmp_path)
    resumed.load_state_dict(state)
    train(resumed, its_optimizer, 3, first=4)
    for name, value in model.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert hook.layers[0].choice.balancer.steps == 7
    assert torch.equal(hook.layers[0].bias, its_hook.layers[0].choice.balancer.shift)
