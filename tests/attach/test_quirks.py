"""Exceptions of families stand in one file, and are of families that exist."""

import ast
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import equipoise
from equipoise.attach.find.quirks import CHECKPOINT_QUIRKS, CheckpointQuirk, checkpoint_quirk
from equipoise.attach.find.routing_spec import PROBED_SCORES
from equipoise.integrations.huggingface.doctor import doctor
from tests.attach.families import WITH_BIAS, WITHOUT_BIAS

PACKAGE = Path(equipoise.__file__).parent
FILES = [*PACKAGE.glob("attach/**/*.py"), *PACKAGE.glob("integrations/**/*.py")]
FAMILIES = {family.name for family in WITH_BIAS + WITHOUT_BIAS}


def constants_that_run(tree):
    """Constants that are no docstrings."""
    written = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in written:
            yield node.value


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_other_file_names_a_family(path):
    # what a training is exported to is a family by definition
    if path.name not in ("quirks.py", "twin_architecture.py"):
        assert not FAMILIES & set(constants_that_run(ast.parse(path.read_text())))


def test_a_family_in_another_file_would_be_seen():
    text = 'def f(config):\n    "deepseek_v4"\n    return config.model_type == "mixtral"'
    assert FAMILIES & set(constants_that_run(ast.parse(text))) == {"mixtral"}


def test_a_new_quirk_is_one_entry(tmp_path, monkeypatch):
    """The worked example of CONTRIBUTING.md: a family that stores its bias under another name, and
    whose config does not say that its scores are a softmax.
    """
    config = {"model_type": "new_moe", "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {
        "model.layers.1.mlp.router.balance": torch.linspace(-1, 1, 8),
        "model.layers.1.mlp.router.weight": torch.randn(8, 16),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="holds no correction bias"):
        doctor(tmp_path)
    quirk = CheckpointQuirk(score="softmax", bias_suffix=".router.balance")
    monkeypatch.setitem(CHECKPOINT_QUIRKS, "new_moe", quirk)
    diagnosis = doctor(tmp_path)
    (finding,) = diagnosis.findings
    assert (diagnosis.score, finding.layer) == ("softmax", "model.layers.1.mlp")
    assert (finding.experts, finding.scores, finding.spread) == (8, "gate", 2.0)


@pytest.mark.parametrize("name", CHECKPOINT_QUIRKS)
def test_quirks_are_of_families_that_exist(name):
    assert name.removesuffix("_text") in FAMILIES
    quirk = checkpoint_quirk(name)
    assert quirk.score is None or quirk.score in PROBED_SCORES
    assert quirk != checkpoint_quirk("a family without quirks")
