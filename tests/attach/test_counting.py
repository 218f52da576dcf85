"""Counts are exact, whatever the training loop does around the router."""

import copy
import gc
import warnings

import pytest
import torch
from torch import nn

import equipoise
from equipoise.attach.count.states import ForwardPhase
from tests.attach.tools import LENGTH, ROWS, batch, choice, forward, shift_of, tiny

# bias in the gate, bias in the block, no bias, choice in the block
KINDS = ["deepseek_v3", "minimax_m2", "mixtral", "dbrx"]
WHOLE = ROWS * LENGTH * 2


def loads_of(model, *batches, around=None, balancer="deepseek"):
    """The loads of one step over these micro-batches."""
    balancing = equipoise.balance(model, balancer)
    for inputs in batches:
        forward(model, inputs).backward()
        if around is not None:
            around(model)
    balancing.step()
    return balancing.metrics(loads=True)["loads"]


def total(*counts):
    return {
        name: [sum(each) for each in zip(*(count[name] for count in counts))] for name in counts[0]
    }


@pytest.mark.parametrize("name", KINDS)
def test_micro_batches_add_up(name):
    first, second = loads_of(tiny(name), batch(0)), loads_of(tiny(name), batch(1, padded=True))
    assert loads_of(tiny(name), batch(0), batch(1, padded=True)) == total(first, second)


@pytest.mark.parametrize("balancer", ["deepseek", "quantile"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_recomputation_counts_nothing(name, reentrant, balancer):
    model, twin = tiny(name), tiny(name)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    assert loads_of(model, batch(0), batch(1), balancer=balancer) == loads_of(
        twin, batch(0), batch(1), balancer=balancer
    )


@pytest.mark.parametrize("name", KINDS)
def test_padding_is_left_out_on_either_side(name):
    inputs = batch(padded=True)
    counted = int(inputs["attention_mask"].sum()) * 2
    assert {sum(loads) for loads in loads_of(tiny(name), inputs).values()} == {counted}
    inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    assert {sum(loads) for loads in loads_of(tiny(name), inputs).values()} == {counted}


def test_packed_sequences_count_whole():
    model, inputs = tiny("deepseek_v3"), batch()
    del inputs["attention_mask"]
    inputs["position_ids"] = torch.arange(LENGTH).repeat(ROWS, 1) % 5
    assert {sum(loads) for loads in loads_of(model, inputs).values()} == {WHOLE}


def evaluate(model):
    model.eval()
    with torch.no_grad():
        forward(model, batch(7))
    forward(model, batch(8))  # with gradients on, but in evaluation mode
    model.train()


def look(model):
    with torch.no_grad():
        forward(model, batch(7))  # in training mode, but nothing is learnt


def generate(model):
    model.generate(batch()["input_ids"], max_new_tokens=3, do_sample=False)


@pytest.mark.parametrize("around", [evaluate, look, generate])
@pytest.mark.parametrize("name", KINDS)
def test_what_is_not_trained_on_is_not_counted(name, around):
    assert loads_of(tiny(name), batch(), around=around) == loads_of(tiny(name), batch())


@pytest.mark.parametrize("name", KINDS)
def test_evaluation_and_generation_use_the_shift(name):
    model = tiny(name)
    balancing = equipoise.balance(model, "deepseek", update_rate=50.0)
    before = forward(model.eval(), batch())
    forward(model.train(), batch()).backward()
    balancing.step()
    assert not torch.allclose(forward(model.eval(), batch()), before, rtol=1e-6)


class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = tiny("deepseek_v3")
        self.config = self.inner.config

    def forward(self, hidden):
        block = self.inner.model.layers[1].mlp
        return block(block(hidden))


def test_a_router_called_twice_counts_twice():
    model = CalledTwice().train()
    balancing = equipoise.balance(model)
    model(torch.randn(2, 5, 32)).sum().backward()
    balancing.step()
    (loads,) = balancing.metrics(loads=True)["loads"].values()
    assert sum(loads) == 2 * 10 * 2


@pytest.mark.parametrize("name", ["solar_open", "mixtral"])
def test_frozen_layers_keep_their_shift(name):
    model = tiny(name)
    balancing = equipoise.balance(model)
    frozen, free = balancing.routers[:2]
    frozen.found.layer.requires_grad_(False)
    forward(model, batch()).backward()
    balancing.step()
    assert not frozen.applied_shift.any()
    assert free.applied_shift.any()
    assert frozen.name in str(balancing).splitlines()[-1]
    # but it is counted
    assert sum(balancing.metrics(loads=True)["loads"][frozen.name]) == WHOLE


@pytest.mark.parametrize("balancer", ["deepseek", "quantile"])
@pytest.mark.parametrize("name", ["deepseek_v3", "afmoe", "mixtral"])
def test_bf16_models_keep_a_float32_shift(name, balancer):
    model = tiny(name).to(torch.bfloat16)
    balancing = equipoise.balance(
        model, balancer, **({"update_rate": 1e-4} if balancer == "deepseek" else {})
    )
    for seed in range(3):
        forward(model, batch(seed)).backward()
        balancing.step()
    router = balancing.routers[0]
    assert router.applied_shift.dtype == torch.float32
    if router.found.bias is not None:
        assert router.found.bias.dtype == torch.float32
        assert torch.equal(router.found.bias.read(), router.applied_shift)
    assert not torch.equal(router.applied_shift.bfloat16().float(), router.applied_shift)


@pytest.mark.parametrize("name", ["deepseek_v3", "afmoe", "ernie4_5_moe"])
def test_casting_after_attaching_loses_nothing(name):
    model = tiny(name)
    balancing = equipoise.balance(model, "proportional", update_rate=0.0137)
    forward(model, batch()).backward()
    balancing.step()
    before = shift_of(balancing)
    model.to(torch.bfloat16)
    saved = model.state_dict()[balancing.routers[0].found.bias.path]
    assert torch.equal(saved.flatten(), before)
    forward(model, batch())
    assert torch.equal(shift_of(balancing), before)


def test_a_loaded_bias_is_taken_over():
    model = tiny("deepseek_v3")
    balancing = equipoise.balance(model, "deepseek", update_rate=0.25)
    state = model.state_dict()
    path = balancing.routers[0].found.bias.path
    state[path] = torch.linspace(-1, 3, 8)
    model.load_state_dict(state)
    forward(model, batch()).backward()
    balancing.step()
    moved = shift_of(balancing) - torch.linspace(-1, 3, 8)
    assert moved.any()
    assert moved.abs().max() <= 0.5
    # the loaded mean is kept
    torch.testing.assert_close(shift_of(balancing).mean(), torch.tensor(1.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_compiled_models_are_counted(name):
    model, twin = tiny(name), tiny(name)
    balancing = equipoise.balance(model)
    compiled = torch.compile(model, backend="eager")
    for inputs in (batch(0), batch(1, padded=True)):
        forward(compiled, inputs).backward()
    evaluate(compiled)
    balancing.step()
    assert balancing.metrics(loads=True)["loads"] == loads_of(twin, batch(0), batch(1, padded=True))


@pytest.mark.parametrize("name", KINDS)
def test_copies_count_nothing_and_route_alike(name):
    model = tiny(name)
    balancing = equipoise.balance(model, update_rate=5.0)
    forward(model, batch(0)).backward()
    balancing.step()
    twin = copy.deepcopy(model)
    forward(model, batch(1)).backward()
    assert torch.equal(forward(twin, batch(1)), forward(model, batch(1)))
    counted = [
        int(tally.loads.sum()) for router in balancing.routers for tally in router.count.tallies
    ]
    assert counted == [WHOLE] * 2 * len(balancing.routers)
    again = equipoise.balance(twin)
    assert torch.equal(shift_of(again), shift_of(balancing))
    forward(twin, batch(2)).backward()
    again.step()
    assert again.metrics()["step"] == 1


def test_expert_parallel_indices_are_recomputed():
    """Under expert parallelism experts get local ids, with a sentinel for those of other ranks."""
    router = equipoise.balance(tiny("deepseek_v3")).routers[0]
    router.found.experts._is_expert_parallel = True
    router.context.phase = ForwardPhase.TRAINING
    hidden, found = torch.randn(6, 32), router.found
    indices, weights = choice(found.block, hidden)
    router.see_choice(found.experts, (hidden, torch.full_like(indices, 8), weights), {})
    assert torch.equal(
        router.count.tallies[0].loads, torch.bincount(indices.flatten(), minlength=8)
    )


def test_nothing_is_kept_alive():
    model = tiny("mixtral")
    equipoise.balance(model).detach()
    gc.collect()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("checkpointed", [False, True])
def test_pictures_have_routers_of_their_own(checkpointed):
    """ernie4_5_vl_moe: text and picture tokens of a padded batch, each to its own router."""
    model, inputs = tiny("ernie4_5_vl_moe"), batch(padded=True)
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    pictures = torch.zeros(ROWS, LENGTH).int()
    pictures[:, 5:9] = 1
    balancing = equipoise.balance(model)
    forward(model, {**inputs, "moe_mm_token_type_ids": pictures}).backward()
    balancing.step()
    counted = {
        name.split(".")[-1]: sum(loads)
        for name, loads in balancing.metrics(loads=True)["loads"].items()
    }
    kept = inputs["attention_mask"].bool()
    assert counted["vision_moe"] == 2 * int((kept & pictures.bool()).sum())
    assert counted["text_moe"] == 2 * int((kept & ~pictures.bool()).sum())


@pytest.mark.parametrize("by", ["config", "argument"])
def test_an_auxiliary_loss_beside_the_shift_is_reported_once(by):
    """TRL turns it on for qwen3_moe."""
    model = tiny("mixtral")
    balancing = equipoise.balance(model)
    inputs = batch()
    model.config.router_aux_loss_coef = 0.01
    if by == "config":
        model.config.output_router_logits = True
    else:
        inputs["output_router_logits"] = True
    with pytest.warns(UserWarning, match=r"two things balance .*router_aux_loss_coef=0\.01"):
        forward(model, inputs).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forward(model, inputs).backward()
    balancing.step()


def test_no_auxiliary_loss_is_reported_where_its_coefficient_is_0():
    model = tiny("mixtral")
    equipoise.balance(model)
    model.config.output_router_logits, model.config.router_aux_loss_coef = True, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forward(model, batch()).backward()


@pytest.mark.parametrize("why", ["the balancer needs scores", "experts are sharded"])
def test_logits_that_were_not_seen_are_told(why):
    """Something called the experts without the gate: either reason alone needs its logits."""
    model = tiny("deepseek_v3")
    sharded = why == "experts are sharded"
    (router,) = equipoise.balance(model, "deepseek" if sharded else "quantile").routers
    router.found.experts._is_expert_parallel = sharded
    hidden = torch.randn(5, model.config.hidden_size)
    indices = torch.tensor([[0, 1]]).expand(5, -1)
    with pytest.raises(RuntimeError, match=r"its gate's logits were not seen"):
        router.found.experts(hidden, indices, torch.ones(5, 2))


@pytest.mark.parametrize("balancer", ["deepseek", "quantile"])
def test_every_forward_is_a_row_of_the_tally(balancer):
    model = tiny("mixtral")
    balancing = equipoise.balance(model, balancer)
    for seed in range(3):
        forward(model, batch(seed)).backward()
    balancing.step()
    for router in balancing.routers:
        tally = balancing.last_tallies[router.name]
        assert tally.forwards.shape == (3, router.balancer.num_experts)
        assert tally.forwards.sum(1).tolist() == [WHOLE] * 3
        assert torch.equal(tally.forwards.sum(0), tally.loads)
