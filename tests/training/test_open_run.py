"""Opening a training's folder: the very model that was trained, or an error that says why not."""

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from equipoise.training import Stopped, train
from equipoise.training.config import write_yaml
from equipoise.training.open_run import open_run
from tests.training.micro import rows
from tests.training.test_survival import stop_at


def newest(config):
    return sorted((Path(config.out) / "checkpoints").iterdir())[-1]


def change_state(run, **changes):
    path = newest(run) / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_opened_model_is_the_trained_one(micro):
    config = micro(balancer="quantile", compile=False)
    result = train(config)
    run = open_run(config.out)
    assert (run.config, run.step) == (config, 8)
    assert not run.model.training
    assert run.corpus.digest == result["corpus_digest"]
    assert run.trainer.evaluate().loss == rows(config, "validation")[-1]["loss"]


def test_a_stopped_training_opens_too(micro, monkeypatch):
    config = micro()
    with monkeypatch.context() as patch:
        stop_at(patch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Stopped):
            train(config)
    assert open_run(config.out).step == 3


def test_opening_changes_no_file(micro):
    config = micro(steps=2)
    train(config)
    before = {path: path.stat().st_mtime_ns for path in Path(config.out).rglob("*")}
    open_run(config.out)
    assert {path: path.stat().st_mtime_ns for path in Path(config.out).rglob("*")} == before


@pytest.fixture
def trained(micro):
    config = micro(steps=2)
    train(config)
    return config


def test_other_formats_are_refused(trained):
    change_state(trained, format=1)
    with pytest.raises(ValueError, match="has format 1, this version reads 2"):
        open_run(trained.out)


def test_a_config_of_another_model_is_refused(trained):
    other = dataclasses.replace(trained, model=dataclasses.replace(trained.model, top_k=3))
    (Path(trained.out) / "config.yaml").write_text(write_yaml(other))
    with pytest.raises(ValueError, match=r"model\.top_k: 2 there, 3 here"):
        open_run(trained.out)


def test_a_setting_younger_than_the_checkpoint_has_its_default(trained):
    config = trained.to_dict()
    del config["look_ahead"]
    change_state(trained, config=config)
    assert open_run(trained.out).step == 2


def test_another_corpus_is_refused(trained):
    change_state(trained, corpus="0" * 64)
    with pytest.raises(ValueError, match="was trained on another corpus"):
        open_run(trained.out)


def test_damaged_files_are_refused(trained):
    path = newest(trained) / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"is damaged: it has \d+ bytes"):
        open_run(trained.out)


def test_folders_without_a_model_are_refused(trained, tmp_path):
    with pytest.raises(ValueError, match="is not the folder of a training"):
        open_run(tmp_path)
    newest(trained).rename(tmp_path / "elsewhere")
    for left in (Path(trained.out) / "checkpoints").iterdir():
        left.rename(tmp_path / left.name)
    with pytest.raises(ValueError, match="has no checkpoint to run"):
        open_run(trained.out)


def test_weights_are_read_without_the_optimizer(trained):
    assert not open_run(trained.out).trainer.optimizer.state


def test_opened_twice_is_the_same(trained):
    one, other = (open_run(trained.out, device="cpu").model.state_dict() for _ in range(2))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
