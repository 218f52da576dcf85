"""A model that leaves the training: saved, merged, pickled; and its shift with it."""

import io
import json
import pickle
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, modeling_utils

import equipoise
from equipoise.attach.state.fingerprint import changed_routers, weight_fingerprint
from tests.attach.tools import batch, forward, shift_of, tiny


def trained(model, **options):
    balancing = equipoise.balance(model, update_rate=0.5, **options)
    forward(model, batch()).backward()
    balancing.step()
    return balancing


def logits(model):
    with torch.no_grad():
        return model.eval()(**batch()).logits


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_model_without_a_bias_is_saved_with_its_shift(name, tmp_path):
    model = tiny(name)
    balancing = trained(model)
    with pytest.warns(UserWarning, match=r"beside the model.*balancing\.anneal\(steps\)"):
        model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert not torch.equal(logits(again), logits(model))
    read = equipoise.balance(again)
    assert torch.equal(shift_of(read), shift_of(balancing))
    assert torch.equal(logits(again), logits(model))


def test_nothing_is_said_where_nothing_is_lost(tmp_path):
    still = tiny("mixtral")
    equipoise.balance(still)
    annealed = tiny("mixtral")
    balancing = trained(annealed)
    balancing.anneal(1)
    forward(annealed.train(), batch()).backward()
    balancing.step()
    biased = tiny("deepseek_v3")
    trained(biased)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=UserWarning)
        for place, model in enumerate((still, annealed, biased)):
            model.save_pretrained(tmp_path / str(place))
    assert not (tmp_path / "2" / "equipoise.safetensors").exists()
    balancing.detach()
    assert "save_pretrained" not in vars(annealed)


def test_a_merged_model_is_saved_with_its_shift(tmp_path):
    peft = pytest.importorskip("peft")
    for place, saved in enumerate(([], ["gate"])):
        config = peft.LoraConfig(r=2, target_modules=["o_proj"], modules_to_save=saved)
        model = peft.get_peft_model(tiny("mixtral"), config).train()
        balancing = trained(model)
        before = logits(model)
        merged = model.merge_and_unload()
        assert torch.allclose(logits(merged), before, atol=1e-6)
        with pytest.warns(UserWarning, match="beside the model"):
            merged.save_pretrained(tmp_path / str(place))
        again = AutoModelForCausalLM.from_pretrained(tmp_path / str(place), dtype=torch.float32)
        assert torch.equal(shift_of(equipoise.balance(again)), shift_of(balancing))
        assert torch.equal(logits(again), logits(merged))


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
@pytest.mark.parametrize("follows", [False, True])
def test_a_balanced_model_can_be_pickled(name, follows):
    """As a copy does, the pickled model routes as the model, and counts nothing."""
    model = tiny(name)
    if follows:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        balancing = equipoise.balance(model, update_rate=0.5, optimizer=optimizer)
        forward(model, batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        balancing = trained(model)
    forward(model, batch()).backward()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(model))):
        forward(twin.train(), batch()).backward()
        twin.zero_grad()
        assert torch.equal(logits(twin), logits(model))
        again = equipoise.balance(twin, update_rate=0.5)
        assert torch.equal(shift_of(again), shift_of(balancing))
        forward(twin.train(), batch()).backward()
        again.step()
        assert not torch.equal(shift_of(again), shift_of(balancing))
        assert again.detach() is twin
        assert "forward" not in vars(twin.model.layers[1].mlp.gate)
    model.train()
    balancing.step()


def test_an_upload_has_the_shift(tmp_path, monkeypatch):
    """save_pretrained(push_to_hub=True) uploads before it returns."""
    model, uploaded = tiny("mixtral"), []
    balancing = trained(model)

    def upload(self, working_dir, repo_id, *args, **kwargs):
        uploaded.append(sorted(path.name for path in Path(working_dir).iterdir()))

    hub = SimpleNamespace(create_repo=lambda repo_id, **options: SimpleNamespace(repo_id=repo_id))
    card = SimpleNamespace(save=lambda path: None)
    monkeypatch.setattr(type(model), "_upload_modified_files", upload)
    monkeypatch.setattr(modeling_utils, "create_and_tag_model_card", lambda *a, **k: card)
    monkeypatch.setattr(modeling_utils, "hf_api", lambda: hub)
    with pytest.warns(UserWarning, match="beside the model"):
        model.save_pretrained(tmp_path, push_to_hub=True, repo_id="somebody/something")
    assert len(uploaded) == 1
    assert "equipoise.safetensors" in uploaded[0]
    assert "_upload_modified_files" not in vars(model)
    again = equipoise.balance(tiny("mixtral")).load(tmp_path)
    assert torch.equal(shift_of(again), shift_of(balancing))


def test_a_model_that_uploads_nothing_is_only_saved(tmp_path):
    """A library of its own has save_pretrained, and no method that uploads."""

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = tiny("mixtral")

        def forward(self, **inputs):
            return self.model(**inputs)

        def save_pretrained(self, folder):
            torch.save(self.state_dict(), Path(folder) / "weights.pt")
            return "saved"

    model = Own().train()
    balancing = trained(model)
    with pytest.warns(UserWarning, match="beside the model"):
        assert model.save_pretrained(tmp_path) == "saved"
    assert "_upload_modified_files" not in vars(model)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "equipoise.safetensors",
        "weights.pt",
    ]
    again = equipoise.balance(Own()).load(tmp_path)
    assert torch.equal(shift_of(again), shift_of(balancing))


def test_the_sum_of_weights_has_all_that_can_be_summed():
    model = tiny("mixtral")
    routers = equipoise.balance(model).routers
    before = weight_fingerprint(routers)
    experts = routers[0].found.experts
    for dtype in (torch.float8_e4m3fn, torch.uint8):
        # packed weights of one byte: float8 has no sum
        packed = torch.ones(4).to(dtype)
        experts.register_parameter("packed", torch.nn.Parameter(packed, requires_grad=False))
        assert weight_fingerprint(routers) == before
    half = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    experts.register_parameter("packed", half)
    known, found = json.loads(before), json.loads(weight_fingerprint(routers))
    assert found[routers[0].name] == pytest.approx(known[routers[0].name] + 4, rel=1e-9)
    assert changed_routers(before, weight_fingerprint(routers)) == [routers[0].name]
