"""LoRA: the base model is frozen and wrapped, and its routers are balanced all the same."""

import copy

import pytest
import torch
from safetensors.torch import load_file

import equipoise
from tests.attach.test_trainer import trainer
from tests.attach.tools import batch, forward, shift_of, tiny

peft = pytest.importorskip("peft")


def adapted(name="deepseek_v3", **options):
    config = peft.LoraConfig(r=2, target_modules=["o_proj"], **options)
    return peft.get_peft_model(tiny(name), config).train()


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral", "afmoe"])
@pytest.mark.parametrize("first", ["balance", "adapt"])
def test_lora_is_counted_and_moved(name, first):
    model = tiny(name)
    if first == "balance":
        balancing = equipoise.balance(model, update_rate=0.5)
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["o_proj"])).train()
    else:
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["o_proj"])).train()
        balancing = equipoise.balance(model, update_rate=0.5)
    inputs = batch(padded=True)
    forward(model, inputs).backward()
    balancing.step()
    counted = int(inputs["attention_mask"].sum()) * 2
    assert {sum(loads) for loads in balancing.metrics(loads=True)["loads"].values()} == {counted}
    assert shift_of(balancing).any()
    assert all(router.name.startswith("model.layers.") for router in balancing.routers)


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_adapters_on_experts_are_counted(name):
    model = tiny(name)
    config = peft.LoraConfig(
        r=2, target_modules=["o_proj"], target_parameters=["mlp.experts.down_proj"]
    )
    model = peft.get_peft_model(model, config).train()
    balancing = equipoise.balance(model)
    forward(model, batch()).backward()
    balancing.step()
    assert {sum(loads) for loads in balancing.metrics(loads=True)["loads"].values()} == {72}


def test_a_gate_that_is_saved_whole_has_its_own_bias():
    model = adapted(modules_to_save=["gate"])
    balancing = equipoise.balance(model, update_rate=0.5)
    assert "modules_to_save.default" in balancing.routers[0].found.bias.path
    forward(model, batch()).backward()
    balancing.step()
    assert shift_of(balancing).any()


def test_an_adapter_keeps_its_sidecar(tmp_path):
    model = adapted()
    balancing = equipoise.balance(model, update_rate=0.5)
    forward(model, batch()).backward()
    balancing.step()
    model.save_pretrained(tmp_path)  # writes the sidecar too
    fresh = peft.PeftModel.from_pretrained(tiny("deepseek_v3"), tmp_path)
    gate = fresh.base_model.model.model.layers[1].mlp.gate
    # an adapter loses it
    assert not gate.e_score_correction_bias.any()
    loaded = equipoise.balance(fresh).load(tmp_path)
    assert torch.equal(shift_of(loaded), shift_of(balancing))
    assert torch.equal(gate.e_score_correction_bias, shift_of(balancing))


def test_a_copy_of_an_adapted_model_saves_itself(tmp_path):
    model = adapted()
    balancing = equipoise.balance(model)
    twin = copy.deepcopy(model)
    torch.nn.init.ones_(
        next(parameter for parameter in twin.parameters() if parameter.requires_grad)
    )
    twin.save_pretrained(tmp_path)
    assert not (tmp_path / "equipoise.safetensors").exists()
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert any((value == 1).all() for value in saved.values())
    balancing.detach().save_pretrained(tmp_path)
    assert not (tmp_path / "equipoise.safetensors").exists()


def test_trainer_saves_and_resumes_an_adapter(tmp_path):
    whole = adapted()
    unbroken = equipoise.balance(whole, "quantile")
    trainer(whole, tmp_path, unbroken, save_strategy="steps", save_steps=2).train()
    model = adapted()
    resumed = equipoise.balance(model, "quantile")
    trainer(model, tmp_path, resumed).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.metrics(loads=True) == unbroken.metrics(loads=True)
    assert torch.equal(shift_of(resumed), shift_of(unbroken))


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_a_gate_that_was_replaced_after_balancing_is_refused(name):
    """PEFT runs a copy of the gate: moving the original's bias would have no effect."""
    model = tiny(name)
    early = equipoise.balance(model, update_rate=0.5)
    config = peft.LoraConfig(r=2, target_modules=["o_proj"], modules_to_save=["gate"])
    model = peft.get_peft_model(model, config).train()
    forward(model, batch()).backward()
    with pytest.raises(RuntimeError, match=r"layers\.\d\.mlp does not run the gate"):
        early.step()
    early.detach()
    balancing = equipoise.balance(model, update_rate=0.5)
    forward(model, batch()).backward()
    balancing.step()
    assert shift_of(balancing).any()


def test_another_adapter_with_its_own_gate_is_refused():
    model = adapted(modules_to_save=["gate"])
    balancing = equipoise.balance(model, update_rate=0.5)
    config = peft.LoraConfig(r=2, target_modules=["o_proj"], modules_to_save=["gate"])
    model.add_adapter("second", config)
    model.set_adapter("second")
    forward(model, batch()).backward()
    with pytest.raises(RuntimeError, match="set_adapter"):
        balancing.step()
    model.set_adapter("default")
    balancing.step()


def test_a_gate_inside_an_adapter_is_in_use():
    """A LoRA layer calls the gate that it wraps: nothing is replaced."""
    model = tiny("mixtral")
    balancing = equipoise.balance(model, update_rate=0.5)
    config = peft.LoraConfig(
        r=2, target_modules=["o_proj"], target_parameters=["mlp.experts.down_proj"]
    )
    model = peft.get_peft_model(model, config).train()
    forward(model, batch()).backward()
    balancing.step()
    assert shift_of(balancing).any()


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral", "ernie4_5_moe", "minimax_m2"])
@pytest.mark.parametrize("first", ["balance", "adapt"])
def test_the_reference_policy_stays_as_it_was(name, first):
    """DPO and GRPO take the model without its adapter as their reference."""
    model, config = tiny(name), peft.LoraConfig(r=2, target_modules=["o_proj"])
    inputs = batch()
    with torch.no_grad():
        began = model.eval()(**inputs).logits
    early = equipoise.balance(model, update_rate=0.5) if first == "balance" else None
    model = peft.get_peft_model(model, config).train()
    balancing = early or equipoise.balance(model, update_rate=0.5)
    for _ in range(2):
        # the policy's forward, the reference's, and only then the backward pass
        loss = forward(model, inputs)
        with torch.no_grad(), model.disable_adapter():
            reference = model(**inputs).logits
        loss.backward()
        moved = shift_of(balancing)
        balancing.step()
        assert not torch.equal(shift_of(balancing), moved)
    assert torch.allclose(reference, began, atol=1e-6)
    moved = shift_of(balancing)
    with torch.no_grad(), model.eval().disable_adapter():
        assert torch.allclose(model(**inputs).logits, began, atol=1e-6)
    with torch.no_grad():
        assert not torch.allclose(model(**inputs).logits, began, atol=1e-6)
    assert torch.equal(shift_of(balancing), moved)
    bias = balancing.routers[0].found.bias
    assert bias is None or torch.equal(bias.read(), moved)


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["lm_head"]}])
def test_a_second_adapter_as_the_reference_stays_as_it_was(name, options, tmp_path):
    """TRL copies an adapter that is trained on to "ref", and takes that as its reference."""
    config = peft.LoraConfig(r=2, target_modules=["o_proj"], **options)
    model = peft.get_peft_model(tiny(name), config).train()
    model.add_adapter("ref", peft.LoraConfig(r=2, target_modules=["o_proj"]))
    balancing, inputs = equipoise.balance(model, update_rate=0.5), batch()

    def reference():
        model.set_adapter("ref")
        with torch.no_grad():
            answer = model(**inputs).logits
        model.set_adapter("default")
        return answer

    with pytest.warns(UserWarning, match="ref was not trained since"):
        began = reference()
    forward(model, inputs).backward()
    balancing.step()
    assert torch.allclose(reference(), began, atol=1e-6)
    moved = shift_of(balancing)
    with torch.no_grad():
        assert not torch.allclose(model(**inputs).logits, began, atol=1e-6)
    # resumed: the reference comes before any training
    balancing.save(tmp_path)
    balancing.detach()
    shift = 0 * shift_of(balancing)
    for router in balancing.routers:
        if router.found.bias is not None:
            router.found.bias.write(shift)
    balancing = equipoise.balance(model, update_rate=0.5).load(tmp_path)
    with pytest.warns(UserWarning, match="ref was not trained since"):
        assert torch.allclose(reference(), began, atol=1e-6)
    # an adapter that is trained is no reference any more
    model.set_adapter("ref")
    forward(model, inputs).backward()
    balancing.step()
    assert not torch.equal(shift_of(balancing), moved)
    model.set_adapter("ref")
    with torch.no_grad():
        assert not torch.allclose(model(**inputs).logits, began, atol=1e-6)


def test_a_failed_forward_of_the_reference_gives_the_shift_back():
    model = adapted()
    balancing = equipoise.balance(model, update_rate=0.5)
    forward(model, batch()).backward()
    balancing.step()
    moved = shift_of(balancing)
    with pytest.raises(TypeError), model.disable_adapter():
        model(input_ids="not a tensor")
    assert torch.equal(balancing.routers[0].found.bias.read(), moved)
