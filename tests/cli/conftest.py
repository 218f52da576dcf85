"""A folder with all that the examples of --help and of the documents name."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from equipoise.training import train
from tests.training.micro import small_config

OLD_FILES = Path(__file__).parents[1] / "end_to_end" / "files_of_0_1"
TEXT = "\n".join(
    f"the {word} of {word[::-1]} is not a {word[1:]}" for word in dir(np) if word.isalpha()
)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A folder with all that the examples name."""
    place = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("EQUIPOISE_CACHE", str(place / "cache"))
        Path("my_texts").mkdir()
        Path("my_texts/text.txt").write_text(TEXT)
        rng = np.random.default_rng(0)
        np.save("scores.npy", rng.random((120, 12), dtype=np.float32))
        save_file({"layer3": rng.random((120, 12), dtype=np.float32)}, "layers.safetensors")
        np.save("shift.npy", np.zeros(12))
        np.save("loads.npy", rng.integers(1, 99, (6, 2, 8)))
        changes = {"balancer": "deepseek", "update_rate": 1e-3, "trace_scores": 64, "steps": 30}
        train(small_config("my_texts", out="runs/a", trace_every=1, **changes))
        shutil.copytree("runs/a/trace", "run/trace")
        shutil.copytree("runs/a/trace", "scores/c")
        shutil.copytree("runs/a/trace", "scores/a")
        shutil.copytree(OLD_FILES / "comparison", "results")
        _save_model("my-model")
    return place


def _save_model(folder):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 8, "head_dim": 8}
    layers = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_attention_heads": 4}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2}
    config = Glm4MoeConfig(**sizes, **layers, **experts, num_key_value_heads=4, vocab_size=64)
    model = Glm4MoeForCausalLM(config)
    model.model.layers[1].mlp.gate.e_score_correction_bias.copy_(torch.linspace(-1, 1, 8))
    model.save_pretrained(folder)


@pytest.fixture
def place(prepared, tmp_path, monkeypatch):
    """A copy to work in."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
