"""The doctor reads checkpoints of every family with a bias, and sees what is wrong with them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from equipoise.cli import main
from equipoise.integrations.huggingface.doctor import doctor
from tests.attach.families import WITH_BIAS, present
from tests.attach.tools import tiny


@pytest.mark.parametrize("family", present(WITH_BIAS), ids=str)
def test_every_family_is_read(family, tmp_path):
    model = family.model()
    for name, value in [*model.named_buffers(), *model.named_parameters()]:
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            value.data.copy_(torch.linspace(-1, 1, value.numel()).view_as(value) + 3)
    model.save_pretrained(tmp_path)
    diagnosis = doctor(tmp_path, tokens=64)
    assert (diagnosis.top_k, diagnosis.score) == (family.top_k, family.score)
    assert (diagnosis.groups == (4, 2)) == family.grouped
    for finding in diagnosis.findings:
        assert finding.experts == family.num_experts
        assert finding.mean == pytest.approx(3.0)
        assert finding.spread == pytest.approx(2.0)
        assert finding.scores == "gate"


def glm(folder, bias, **options):
    """A wider model: 64 experts, so that rounding has something to spoil."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "moe_intermediate_size": 8,
        "num_attention_heads": 4,
    }
    config = Glm4MoeConfig(
        **sizes, num_key_value_heads=4, head_dim=8, num_hidden_layers=2, first_k_dense_replace=1,
        vocab_size=64, n_routed_experts=64, num_experts_per_tok=8,
    )  # fmt: skip
    model = Glm4MoeForCausalLM(config)
    torch.nn.init.normal_(model.model.layers[1].mlp.gate.weight, std=0.2)
    model.model.layers[1].mlp.gate.e_score_correction_bias.copy_(bias)
    model.save_pretrained(folder, **options)
    return folder


def test_an_offset_is_seen_and_its_cure(tmp_path):
    """As reported to sglang: values near 8 collapse in bf16; nearly all tokens change experts."""
    (finding,) = (diagnosis := doctor(glm(tmp_path, 8 + 0.02 * torch.randn(64)))).findings
    assert finding.distinct == 64
    assert finding.distinct_bf16 < 8
    assert finding.changed_bf16 > 0.3
    assert finding.changed_centred < finding.changed_bf16 / 5
    assert any("common offset" in line for line in diagnosis.advice)
    assert any("do not cast" in line for line in diagnosis.advice)


def test_zeros_are_reported(tmp_path):
    diagnosis = doctor(glm(tmp_path, torch.zeros(64)))
    assert not diagnosis.findings[0].moved
    assert "never moved" in diagnosis.advice[0]


def test_lost_digits_are_reported(tmp_path):
    glm(tmp_path, 0.5 * torch.randn(64))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {key: value.bfloat16() for key, value in tensors.items()}, tmp_path / "model.safetensors"
    )
    diagnosis = doctor(tmp_path)
    assert diagnosis.findings[0].dtype == "bfloat16"
    assert diagnosis.findings[0].changed_bf16 > 0
    assert "digits are lost" in diagnosis.advice[0]


def test_healthy_biases_are_left_alone(tmp_path):
    assert doctor(glm(tmp_path, torch.arange(64.0) / 64 - 0.5)).advice == ["nothing to worry about"]


def test_shards_are_followed(tmp_path):
    glm(tmp_path, torch.arange(64.0), max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert doctor(tmp_path).findings[0].spread == 63
    next(tmp_path.glob("model-00001*")).unlink()
    with pytest.raises(FileNotFoundError, match="names files that are not there"):
        doctor(tmp_path)


def test_the_command_prints_a_table_and_json(tmp_path, capsys):
    glm(tmp_path, torch.arange(64.0))
    assert main(["doctor", str(tmp_path)]) == 0
    assert "model.layers.1.mlp" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path), "--json", "--tokens", "16"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["distinct"] == 64


def test_mistakes_are_explained(tmp_path, capsys):
    assert main(["doctor", str(tmp_path / "nowhere")]) == 2
    assert "config.json is not there" in capsys.readouterr().err
    tiny("mixtral").save_pretrained(tmp_path)
    assert main(["doctor", str(tmp_path)]) == 2
    assert "holds no correction bias" in capsys.readouterr().err
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").touch()
    assert main(["doctor", str(tmp_path)]) == 2
    assert "are not opened" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"[1]", "config.json is damaged: it holds no JSON object"),
        ("config.json", b"{", "config.json is damaged: it is not JSON"),
        ("model.safetensors.index.json", b"{}", "index.json is damaged: it has no weight_map"),
        ("model.safetensors", b"\x08" + bytes(99), "is damaged"),
    ],
)
def test_damaged_folders_are_reported(tmp_path, capsys, file, content, message):
    tiny("deepseek_v3").save_pretrained(tmp_path)
    (tmp_path / file).write_bytes(content)
    assert main(["doctor", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_bias_that_is_not_finite_is_named(tmp_path, value):
    bias = torch.zeros(64)
    bias[3] = value
    assert any("NaN or infinity" in line for line in doctor(glm(tmp_path, bias)).serious)


@pytest.mark.parametrize("groups", [{"n_group": "a"}, {"topk_group": 99}, {"topk_group": -1}])
def test_impossible_groups_are_named_with_the_file(groups, tmp_path, capsys):
    tiny("deepseek_v3").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **groups}))
    assert main(["doctor", str(tmp_path)]) == 2
    assert "config.json is damaged: it keeps" in capsys.readouterr().err
