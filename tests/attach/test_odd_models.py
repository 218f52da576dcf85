"""Odd models and odd moments: either the counts are right, or an error says what is wrong and what
to do.
"""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import equipoise
from tests.attach.tools import LENGTH, ROWS, batch, forward, shift_of, tiny

WHOLE = ROWS * LENGTH * 2


def counted(balancing):
    return {sum(loads) for loads in balancing.metrics(loads=True)["loads"].values()}


def step(model, balancing, seed=0):
    forward(model, batch(seed)).backward()
    balancing.step()
    return counted(balancing)


def test_a_dense_model_is_refused():
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
    }
    with pytest.raises(ValueError, match="LlamaForCausalLM has no router to balance"):
        equipoise.balance(LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=64)))


@pytest.mark.parametrize("thing", ["deepseek", [torch.nn.Linear(2, 2)], None])
def test_what_is_no_model_is_refused(thing):
    with pytest.raises(TypeError, match=f"not {type(thing).__name__}: put parts"):
        equipoise.balance(thing)


def test_what_is_no_optimizer_is_refused_and_leaves_nothing():
    model = tiny("deepseek_v3")
    with pytest.raises(TypeError, match="not str: with another, call"):
        equipoise.balance(model, optimizer="adam")
    equipoise.balance(model)


def test_a_model_without_values_is_refused():
    with torch.device("meta"):
        model = tiny("deepseek_v3")
    with pytest.raises(ValueError, match=r"gate\.e_score_correction_bias is on the meta device"):
        equipoise.balance(model)


def test_inference_mode_is_refused():
    model = tiny("deepseek_v3")
    with torch.inference_mode(), pytest.raises(RuntimeError, match="outside of torch"):
        equipoise.balance(model)
    with torch.inference_mode():
        model = tiny("deepseek_v3")
    with pytest.raises(ValueError, match="can never be updated: make"):
        equipoise.balance(model)


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_inference_between_steps_counts_nothing(name):
    model = tiny(name)
    balancing = equipoise.balance(model)
    with torch.inference_mode():
        forward(model, batch(1))
    assert step(model, balancing) == {WHOLE}
    with torch.inference_mode():
        forward(model, batch(1))
    assert step(model, balancing) == {WHOLE}


def test_a_model_in_evaluation_is_reported():
    model = tiny("deepseek_v3").eval()
    balancing = equipoise.balance(model)
    with pytest.raises(RuntimeError, match=r"model\.train\(\)"):
        step(model, balancing)


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_detaching_twice_touches_no_successor(name):
    model = tiny(name)
    first = equipoise.balance(model)
    first.detach()
    second = equipoise.balance(model)
    assert first.detach() is model
    assert step(model, second) == {WHOLE}
    with pytest.raises(RuntimeError, match="was detached"):
        first.step()
    with pytest.raises(RuntimeError, match="was detached"):
        first.load("anywhere")


def test_a_part_is_not_balanced_twice():
    model = tiny("deepseek_v3")
    equipoise.balance(model.model)
    with pytest.raises(ValueError, match="balanced already"):
        equipoise.balance(model)


def test_a_model_compiled_before_is_counted_or_reported():
    """What was traced without hooks stays so: nothing is counted, and step() says why."""
    model = tiny("deepseek_v3")
    compiled = torch.compile(model, backend="eager")
    forward(compiled, batch()).backward()
    balancing = equipoise.balance(compiled)
    with pytest.raises(RuntimeError, match="compiled before balance"):
        step(compiled, balancing)


@pytest.mark.parametrize("zeroed_by", ["optimizer", "model"])
def test_a_nan_in_a_micro_batch_drops_the_whole_step(zeroed_by):
    model = tiny("deepseek_v3")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    balancing = equipoise.balance(model, optimizer=optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

    def accumulate(spoilt):
        for seed in range(2):
            loss = scaler.scale(forward(model, batch(seed)))
            (loss * float("nan") if spoilt and seed else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        {"optimizer": optimizer, "model": model}[zeroed_by].zero_grad()

    accumulate(spoilt=False)
    with pytest.warns(UserWarning, match=r"dropped \(1 so far\)"):
        accumulate(spoilt=True)
    accumulate(spoilt=False)
    assert (balancing.metrics()["step"], counted(balancing)) == (2, {2 * WHOLE})


def test_a_copy_zeroes_its_own_gradients():
    model = tiny("deepseek_v3")
    balancing = equipoise.balance(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    twin = copy.deepcopy(model)
    forward(model, batch()).backward()
    forward(twin, batch()).backward()
    twin.zero_grad()
    assert all(parameter.grad is None for parameter in twin.parameters())
    assert any(parameter.grad is not None for parameter in model.parameters())
    assert balancing.dropped == 0


def test_an_evaluation_that_fails_takes_nothing_back():
    """With gradients on, in evaluation mode: what was trained on before it stays counted."""
    model = tiny("solar_open")
    balancing = equipoise.balance(model)
    forward(model, batch(1)).backward()
    model.eval()
    with (
        model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0),
        pytest.raises(ZeroDivisionError),
    ):
        forward(model, batch(0))
    model.train()
    balancing.step()
    assert counted(balancing) == {WHOLE}


@pytest.mark.parametrize("name", ["solar_open", "mixtral"])
def test_a_forward_that_fails_halfway_is_not_counted(name):
    """Out of memory in the second layer, caught, and tried again: the first layer must not count it
    twice.
    """
    model = tiny(name)
    balancing = equipoise.balance(model)
    forward(model, batch(1)).backward()
    with (
        model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0),
        pytest.raises(ZeroDivisionError),
    ):
        forward(model, batch())
    assert step(model, balancing) == {2 * WHOLE}


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_generation_inside_training_counts_nothing(name):
    model = tiny(name)
    balancing = equipoise.balance(model)
    forward(model, batch()).backward()
    model.generate(batch()["input_ids"], max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert step(model, balancing) == {2 * WHOLE}


@pytest.mark.parametrize("name", ["deepseek_v3", "minimax_m2", "afmoe", "mixtral"])
def test_fp16_models_keep_a_float32_shift(name):
    model = tiny(name).half()
    balancing = equipoise.balance(model, "proportional", update_rate=0.0137)
    assert step(model, balancing) == {WHOLE}
    shift = shift_of(balancing)
    assert shift.dtype == torch.float32
    assert not torch.equal(shift, shift.half().float())  # it has digits that fp16 has not


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_gates_are_recognised(dtype):
    """A gate whose weight is a buffer of bytes, scaled where it is used."""
    model = tiny("deepseek_v3")
    gate = model.model.layers[1].mlp.gate
    weight = gate.weight.data
    del gate.weight
    gate.register_buffer("weight", (weight * 100).to(dtype))
    (router,) = (balancing := equipoise.balance(model, update_rate=0.5)).routers
    assert (router.found.spec.num_experts, router.found.spec.top_k, router.found.spec.score) == (
        8,
        2,
        "sigmoid",
    )
    gate.weight = gate.weight.float()
    assert step(model, balancing) == {WHOLE}


def test_a_merged_adapter_takes_its_bias_along():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        tiny("deepseek_v3"), peft.LoraConfig(r=2, target_modules=["o_proj"])
    ).train()
    balancing = equipoise.balance(model, update_rate=0.5)
    step(model, balancing)
    balancing.detach()
    merged = model.merge_and_unload().train().requires_grad_(True)
    assert torch.equal(merged.model.layers[1].mlp.gate.e_score_correction_bias, shift_of(balancing))
    again = equipoise.balance(merged)
    assert step(merged, again) == {WHOLE}
    assert not torch.equal(shift_of(again), shift_of(balancing))
