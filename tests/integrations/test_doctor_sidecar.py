"""The doctor compares a model with its sidecar, and its exit code says what is serious."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

import equipoise
from equipoise.attach.state.sidecar import SIDECAR_NAME
from equipoise.cli import main
from equipoise.integrations.huggingface.doctor import doctor
from tests.attach.tools import tiny


def trained(folder, family):
    """A model after three steps of balancing, saved with its sidecar."""
    torch.manual_seed(0)
    model = tiny(family).train()
    balancing = equipoise.balance(model, "deepseek", update_rate=0.25)
    for _ in range(3):
        model(input_ids=torch.randint(0, 64, (2, 16)))
        balancing.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
        balancing.save(folder)
    assert (folder / SIDECAR_NAME).is_file()
    return folder


def change_biases(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    biases = [key for key in tensors if key.endswith("e_score_correction_bias")]
    assert biases
    save_file(tensors | {key: change(tensors[key]) for key in biases}, path)


def code_of(folder, *more):
    try:
        return main(["doctor", str(folder), "--tokens", "64", *more])
    except SystemExit as stop:
        return stop.code


def test_a_model_as_it_was_saved_is_fine(tmp_path, capsys):
    diagnosis = doctor(trained(tmp_path, "deepseek_v3"), tokens=64)
    assert diagnosis.sidecar == SIDECAR_NAME
    assert all(each.moved for each in diagnosis.findings)
    assert [each.off_sidecar for each in diagnosis.findings] == pytest.approx([0.0], abs=1e-6)
    assert diagnosis.serious == []
    assert code_of(tmp_path) == 0
    out = capsys.readouterr().out
    assert out.startswith("Nothing serious; equipoise.safetensors stands")
    table = out.split("\n\n")[1].splitlines()
    assert set(table[1]) == {"─"}
    assert max(map(len, table)) <= 80


def test_a_bias_of_another_step_is_serious(tmp_path, capsys):
    change_biases(trained(tmp_path, "deepseek_v3"), lambda bias: bias.roll(1))
    assert code_of(tmp_path, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert "are not those in equipoise.safetensors" in found["serious"][0]
    assert found["serious"][0] in found["advice"]


def test_digits_that_the_sidecar_has_are_not_lost(tmp_path):
    digits = 0.1 * torch.linspace(0.1, 0.9, 8)
    trained(tmp_path, "deepseek_v3")
    sidecar = load_file(tmp_path / SIDECAR_NAME)
    shifts = {key: each + digits for key, each in sidecar.items() if key.endswith("/shift")}
    means = {
        key: each + digits.double().mean() for key, each in sidecar.items() if key.endswith("/mean")
    }
    metadata = {"equipoise": "1", "steps": "2", "dropped": "0"}
    save_file(sidecar | shifts | means, tmp_path / SIDECAR_NAME, metadata=metadata)
    change_biases(tmp_path, lambda bias: (bias + digits).bfloat16())
    diagnosis = doctor(tmp_path, tokens=64)
    assert diagnosis.findings[0].off_sidecar > 0
    assert diagnosis.serious == []
    assert any("has all their digits" in line for line in diagnosis.advice)

    (tmp_path / SIDECAR_NAME).unlink()
    assert "digits are lost for good" in doctor(tmp_path, tokens=64).serious[0]
    assert code_of(tmp_path) == 1


def test_a_shift_that_only_the_sidecar_has_is_serious(tmp_path, capsys):
    trained(tmp_path, "mixtral")
    assert code_of(tmp_path) == 1
    out = capsys.readouterr().out
    assert out.startswith("1 serious")
    assert "without equipoise.balance(model)" in out


def test_values_that_are_no_numbers_are_serious(tmp_path, capsys):
    trained(tmp_path, "deepseek_v3")
    change_biases(tmp_path, lambda bias: bias.index_fill(0, torch.tensor([1]), torch.nan))
    assert code_of(tmp_path) == 1
    assert "hold NaN or infinity" in capsys.readouterr().out


def test_a_damaged_sidecar_is_reported(tmp_path, capsys):
    trained(tmp_path, "deepseek_v3")
    (tmp_path / SIDECAR_NAME).write_bytes(b"no")
    assert code_of(tmp_path) == 2
    assert "equipoise.safetensors is damaged" in capsys.readouterr().err
