"""A training becomes a folder of transformers: loaded, examined, balanced, generating."""

import importlib
import json

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

import equipoise
from equipoise.cli import main
from equipoise.integrations.huggingface.export import export
from equipoise.training import train
from equipoise.training.config import write_yaml
from equipoise.training.open_run import open_run
from tests.training.micro import small_config

# `equipoise.integrations.huggingface.export` as a word is the function, once that was used
export_module = importlib.import_module(export.__module__)
TEXT = "the expert of the layer is not the layer of the expert\n"


def trained(place, name, **changes):
    config = small_config(place / "texts", out=str(place / name), **changes)
    train(config)
    return place / name


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """With texts, and a cache of its own."""
    place = tmp_path_factory.mktemp("exports")
    (place / "texts").mkdir()
    words = [f"{TEXT}{number} {number * 7919} {TEXT[number % 20 :]}" for number in range(800)]
    (place / "texts" / "a.txt").write_text("".join(words))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOISE_CACHE", str(place / "cache"))
        yield place


@pytest.fixture(scope="module")
def run(place):
    return trained(place, "run", balancer="deepseek", update_rate=1e-2)


@pytest.fixture(scope="module")
def exported(run, place):
    return export(run, place / "my-model").folder


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def biases(model):
    found = [
        value for name, value in model.state_dict().items() if name.endswith("correction_bias")
    ]
    return [value.flatten() for value in found]


def shifts(run, settled=False):
    layers = open_run(run).model.moe_layers.values()
    rules = [layer.router.balancer for layer in layers]
    return [rule.settled_shift if settled else rule.shift for rule in rules]


@torch.no_grad()
def test_the_same_logits_and_the_shift_in_the_models_own_tensors(run, exported):
    ours, theirs = open_run(run).model, load(exported)
    tokens = torch.randint(300, (4, 16), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens).logits, rtol=0, atol=1e-5)
    assert all(shift.any() for shift in shifts(run))
    assert [bias.tolist() for bias in biases(theirs)] == [each.tolist() for each in shifts(run)]


def test_what_is_written(exported):
    names = {path.name for path in exported.iterdir()}
    assert names == {
        "README.md", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert len({path.stat().st_mode for path in exported.iterdir()}) == 1
    with safe_open(exported / "model.safetensors", "pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.float32}  # noqa: SIM118
    config = json.loads((exported / "config.json").read_text())
    assert config["model_type"] == "ernie4_5_moe"
    # such an embedding would get no gradient
    assert config.get("pad_token_id") is None


def test_the_card_says_how_even_the_loads_are(run, exported):
    card = (exported / "README.md").read_text()
    result = json.loads((run / "result.json").read_text())
    assert card.startswith("---\nlibrary_name: transformers\n")
    for name in ("validation_loss", "imbalance", "floor"):
        assert f"{result[name]:.4f}" in card
    for name, level in zip(("blocks.1", "blocks.2"), result["layers"]["imbalance"]):
        assert f"| {name} | {level:.4f} |" in card
    assert "logits of" in card
    assert "moe_norm_min" in card
    code = card.split("```python\n")[2].split("```")[0]
    assert 'equipoise.balance(model, "deepseek")' in code


def test_the_tokenizer_reads_as_the_training_did(run, exported):
    loaded = AutoTokenizer.from_pretrained(exported)
    raw = open_run(run).corpus.folder / "tokenizer.json"
    words = f"{TEXT}  déjà 漢字<|endoftext|>the"
    assert loaded(words, verbose=False)["input_ids"] == _read_raw(raw, words)
    assert loaded.eos_token == "<|endoftext|>"
    assert loaded.model_max_length == 16


def _read_raw(path, words):
    import tokenizers

    return tokenizers.Tokenizer.from_file(str(path)).encode(words).ids


def test_the_doctor_reads_it(run, exported):
    diagnosis = equipoise.doctor(exported, tokens=64)
    assert diagnosis.score == "softmax"
    assert diagnosis.top_k == 2
    assert not diagnosis.serious
    spreads = [float(shift.max() - shift.min()) for shift in shifts(run)]
    assert [finding.spread for finding in diagnosis.findings] == pytest.approx(spreads)


def test_balance_continues_with_the_shift(run, exported):
    model = load(exported).train()
    balancing = equipoise.balance(model, "deepseek", update_rate=1e-2)
    before = [router.balancer.shift.clone() for router in balancing.routers]
    assert [each.tolist() for each in before] == [each.tolist() for each in shifts(run)]
    tokens = torch.randint(300, (4, 16), generator=torch.Generator().manual_seed(1))
    model(tokens, labels=tokens).loss.backward()
    balancing.step()
    for router, shift, bias in zip(balancing.routers, before, biases(model)):
        loads = balancing.metrics(loads=True)["loads"][router.name]
        assert sum(loads) == 4 * 16 * 2
        moved = 1e-2 * torch.sign(16.0 - torch.tensor(loads))
        assert router.balancer.shift.tolist() == (shift + moved).tolist()
        # the bias keeps the mean it was loaded with
        torch.testing.assert_close(bias, shift + moved - moved.mean())


def test_it_generates(exported):
    model, tokenizer = load(exported), AutoTokenizer.from_pretrained(exported)
    words = tokenizer("the expert", return_tensors="pt")
    with torch.no_grad():
        made = model.generate(**words, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        length = words["input_ids"].shape[1]
        following = model(made[:, :-1]).logits[0, length - 1 :].argmax(-1)
    assert made[0, length:].tolist() == following.tolist()


@pytest.mark.parametrize("balancer", ["curvature", "none", "sinkhorn", "aux"])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_other_balancers_and_scores(balancer, score, place):
    name = f"{balancer}-{score}"
    run = trained(place, name, balancer=balancer, steps=3, model={"score": score})
    done = export(run, place / f"{name}-model")
    assert done.compared.difference < 1e-5
    assert done.model_type == {"softmax": "ernie4_5_moe", "sigmoid": "glm4_moe"}[score]
    assert any(bias.any() for bias in biases(load(done.folder))) == (balancer == "curvature")


def test_the_settled_shift(run, place):
    done = export(run, place / "settled-model", settled=True)
    exact = [shift.tolist() for shift in shifts(run, settled=True)]
    assert [bias.tolist() for bias in biases(load(done.folder))] == exact
    assert exact != [shift.tolist() for shift in shifts(run)]
    assert "settled shifts, after step 8" in (done.folder / "README.md").read_text()


def test_nothing_is_overwritten(run, exported, tmp_path, capsys):
    held = (exported / "config.json").stat().st_mtime_ns
    assert main(["export", str(run), "--out", str(exported)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert (exported / "config.json").stat().st_mtime_ns == held
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is there already"):
        export(run, tmp_path / "file")


def test_what_cannot_be_expressed_is_refused_before_it_is_loaded(tmp_path):
    config = small_config(tmp_path / "nowhere", model={"score": "sqrt_softplus"})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(write_yaml(config))
    with pytest.raises(ValueError, match="scores by sqrt_softplus"):
        export(tmp_path / "run", tmp_path / "out")
    with pytest.raises(ValueError, match="is not the folder of a training"):
        export(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("part", ["lm_head.weight", "model.embed_tokens.weight"])
def test_a_folder_with_other_weights_does_not_appear(part, run, tmp_path, monkeypatch):
    right = export_module.make_twin

    def wrong_twin(net, tokens):
        twin = right(net, tokens)
        with torch.no_grad():
            twin.get_parameter(part)[5:7] += 1e-3
        return twin

    monkeypatch.setattr(export_module, "make_twin", wrong_twin)
    with pytest.raises(ValueError, match=f"{part} was not written as it was trained"):
        export(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_gives_other_logits_does_not_appear(run, tmp_path, monkeypatch):
    right = export_module.make_twin

    def wrong_twin(net, tokens):
        twin = right(net, tokens)
        twin.config.moe_norm_min = 1e-12
        return twin

    monkeypatch.setattr(export_module, "make_twin", wrong_twin)
    with pytest.raises(ValueError, match="is not the one that was trained"):
        export(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_reads_otherwise_is_told(run, tmp_path, monkeypatch):
    class Other:
        def __call__(self, words, verbose):
            return {"input_ids": [1, 2, 3]}

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *args, **options: Other())
    with pytest.raises(ValueError, match="reads the tokenizer that was written otherwise"):
        export(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_command(run, tmp_path, capsys):
    assert main(["export", str(run), "--out", str(tmp_path / "model"), "--settled"]) == 0
    shown = capsys.readouterr().out
    assert "ernie4_5_moe, step 8; logits of 128 tokens differ by at most" in shown
    assert main(["doctor", str(tmp_path / "model"), "--tokens", "64"]) == 0
