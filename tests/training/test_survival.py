"""What a training survives: being stopped, killed, filled up, and handed the wrong checkpoint."""

import dataclasses
import errno
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from equipoise.training import Stopped, train
from equipoise.training.checkpoint import Checkpoints
from equipoise.training.data.batches import Batches
from equipoise.training.trainer import Trainer
from tests.training.micro import rows, without_times

KILLS = 10


def again(config, **changes):
    return dataclasses.replace(config, resume=True, **changes)


def checkpoints(config):
    return sorted(path.name for path in (Path(config.out) / "checkpoints").iterdir())


def state(config, name):
    from safetensors.torch import load_file

    return load_file(Path(config.out) / "checkpoints" / name / "tensors.safetensors")


def stop_at(monkeypatch, number, action):
    """Do something in the middle of a step."""
    original = Batches.__getitem__

    def patched(self, step):
        if step + 1 == number:
            action()
        return original(self, step)

    monkeypatch.setattr(Batches, "__getitem__", patched)


def raises(error):
    def action():
        raise error

    return action


@pytest.fixture
def unbroken(micro, tmp_path):
    config = micro(out=str(tmp_path / "unbroken"), balancer="curvature", look_ahead=20)
    return config, train(config)


@pytest.mark.parametrize("number", [1, 2, 3, 6, 8])
def test_resuming_is_bit_exact(micro, unbroken, monkeypatch, number):
    """Whenever it crashed, the end is the same to the last bit: weights, optimizer, balancers, and
    every line of the log.
    """
    config = micro(balancer="curvature", look_ahead=20)
    with monkeypatch.context() as patch:
        stop_at(patch, number, raises(RuntimeError("power cut")))
        with pytest.raises(RuntimeError, match="power cut"):
            train(config)
    torch.manual_seed(12345)
    result = train(again(config))
    assert without_times(result) == without_times(unbroken[1])
    assert rows(config) == rows(unbroken[0])
    one, other = state(config, "step-00000008"), state(unbroken[0], "step-00000008")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_cleanly(micro, unbroken, monkeypatch, number):
    config = micro(balancer="curvature", look_ahead=20, checkpoint_every=0)
    with monkeypatch.context() as patch:
        stop_at(patch, 3, lambda: os.kill(os.getpid(), number))
        with pytest.raises(Stopped, match=r"stopped at step 3 of 8 by SIG.*--resume") as stopped:
            train(config)
    assert stopped.value.exit_code == 128 + number
    assert checkpoints(config) == ["step-00000003"]
    assert not (Path(config.out) / "result.json").exists()
    assert without_times(train(again(config))) == without_times(unbroken[1])


def test_a_second_interrupt_is_obeyed_at_once(micro, monkeypatch):
    config = micro()
    stop_at(monkeypatch, 3, lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
    with pytest.raises(KeyboardInterrupt) as stopped:
        train(config)
    assert not isinstance(stopped.value, Stopped)


def test_a_finished_run_is_not_run_again(micro, monkeypatch):
    config = micro()
    result = train(config)
    monkeypatch.setattr(Trainer, "step", None)
    assert train(again(config)) == result


def test_a_finished_run_of_another_config_is_reported(micro):
    config = micro(steps=2)
    train(config)
    with pytest.raises(ValueError, match=r"another config:\n  steps: 2 there, 4 here"):
        train(again(config, steps=4))


def test_the_last_few_are_kept(micro):
    config = micro(keep_checkpoints=3)
    train(config)
    assert checkpoints(config) == ["step-00000004", "step-00000006", "step-00000008"]


def train_quietly(config):
    torch.set_num_threads(1)
    train(config)


def wait_for_a_step(config, process):
    def steps():
        path = Path(config.out) / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    before = steps()
    while steps() <= before and process.is_alive():
        before = min(before, steps())  # resuming cuts off what came after the checkpoint
        time.sleep(0.001)


def test_kill_minus_nine_at_any_moment(micro, tmp_path):
    """Ten kills at random moments, each followed by --resume; then the same end as without them."""
    changes = {"balancer": "curvature", "look_ahead": 20, "checkpoint_every": 2, "steps": 50}
    whole, config = micro(out=str(tmp_path / "whole"), **changes), micro(**changes)
    started = time.monotonic()
    expected = train(whole)
    lasted = time.monotonic() - started
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["equipoise.training.loop", "tests.training.test_survival"])
    draw = random.Random(0)
    codes = []
    for n in range(KILLS):
        process = context.Process(target=train_quietly, args=(again(config),))
        process.start()
        if n % 2:  # every other one is killed while it trains, the rest perhaps while it starts
            wait_for_a_step(config, process)
        time.sleep(draw.uniform(0, 0.1 * lasted))
        process.kill()
        process.join()
        codes.append(process.exitcode)
    assert codes.count(-signal.SIGKILL) >= KILLS // 2
    assert checkpoints(config)
    assert without_times(train(again(config))) == without_times(expected)
    assert rows(config) == rows(whole)


def test_every_state_of_the_disk_can_be_resumed(micro, unbroken, tmp_path, monkeypatch):
    """A kill leaves the disk as it was between two system calls: try every one of them around a
    checkpoint.
    """
    config = micro(balancer="curvature", look_ahead=20, checkpoint_every=4)
    snapshots = []

    def snapshot(event, arguments):
        inside = event in (
            "os.rename",
            "os.mkdir",
            "open",
            "os.rmdir",
            "os.remove",
        ) and config.out in str(arguments)
        if recording and inside and "checkpoints" in str(arguments):
            recording.clear()  # copying opens files too
            snapshots.append(shutil.copytree(config.out, tmp_path / f"snapshot-{len(snapshots)}"))
            recording.append(True)

    recording = []
    import sys

    sys.addaudithook(snapshot)
    recording.append(True)
    train(config)
    recording.clear()
    assert len(snapshots) > 6
    for folder in snapshots[:: max(1, len(snapshots) // 8)]:
        assert without_times(train(again(config, out=str(folder)))) == without_times(unbroken[1])


def fill_the_disk(config, limit):
    """No file may grow beyond the limit: a writer that fails as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train_quietly(config)
    except OSError as error:
        Path(config.out, "error.txt").write_text(str(error))


def test_a_full_disk_loses_nothing(micro, unbroken, monkeypatch):
    config = micro(balancer="curvature", look_ahead=20, checkpoint_every=4)
    with monkeypatch.context() as patch:
        stop_at(patch, 6, raises(RuntimeError("power cut")))
        with pytest.raises(RuntimeError):
            train(config)
    process = multiprocessing.get_context("forkserver").Process(
        target=fill_the_disk, args=(again(config), 50_000)
    )
    process.start()
    process.join()
    message = Path(config.out, "error.txt").read_text()
    assert "the checkpoint of step 8 could not be written" in message
    assert "That of step 4 is untouched: make room and continue with --resume" in message
    assert checkpoints(config) == ["step-00000004"]
    assert without_times(train(again(config))) == without_times(unbroken[1])


def test_a_failing_sync_loses_nothing(micro, monkeypatch):
    config = micro()

    def save(self, tensors, about, **options):
        if about["step"] == 4:
            monkeypatch.setattr(os, "fsync", raises_disk_full)
        return original(self, tensors, about, **options)

    def raises_disk_full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    original = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(
        OSError, match=r"step 4 could not be written: .*No space left.*step 2 is untouched"
    ):
        train(config)
    assert checkpoints(config) == ["step-00000002"]


def test_nan_stops_before_the_weights(micro, monkeypatch):
    config = micro()

    def spoil(self, *arguments, **options):
        outputs, scores = original(self, *arguments, **options)
        if arguments[0] == 5:
            outputs = [outputs[0]._replace(loss=outputs[0].loss * torch.nan)]
        return outputs, scores

    original = Trainer._forward_backward
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_forward_backward", spoil)
        with pytest.raises(
            FloatingPointError,
            match=r"the loss of step 5 is nan.*--resume would make the same steps.*another --out",
        ):
            train(config)
    assert checkpoints(config) == ["step-00000002", "step-00000004"]
    assert train(again(config))["steps"] == 8


def test_other_configs_are_refused(micro):
    config = micro(steps=4)
    train(config)
    (Path(config.out) / "result.json").unlink()
    with pytest.raises(
        ValueError,
        match=r"another config:\n  seed: 0 there, 7 here\n  model.top_k: 2 there, 3 here",
    ):
        train(again(config, seed=7, model=dataclasses.replace(config.model, top_k=3)))
    train(again(config, checkpoint_every=1))  # this one changes nothing that is computed


def test_other_configs_are_refused_before_the_first_checkpoint_too(micro, monkeypatch):
    """Metrics and trace are there already, and would go on under the wrong name."""
    config = micro(steps=4)
    stop_at(monkeypatch, 2, raises(MemoryError))
    with pytest.raises(MemoryError):
        train(config)
    monkeypatch.undo()
    assert not (Path(config.out) / "checkpoints").exists() or not checkpoints(config)
    with pytest.raises(ValueError, match="balancer: 'deepseek' there, 'quantile' here"):
        train(again(config, balancer="quantile"))


def test_too_little_to_validate_on_is_reported_at_once(micro, tmp_path):
    (tmp_path / "text.txt").write_text("many words to read \n" * 200 + "end\n" * 10)
    config = micro(data=str(tmp_path / "text.txt"), model={"sequence_length": 64})
    with pytest.raises(
        ValueError, match=r"has \d+ validation tokens, too few for one sequence of 64"
    ):
        train(config)
    assert not Path(config.out).exists()


def test_other_corpora_are_refused(micro, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for n in range(2):
        (texts / f"{n}.txt").write_text("some words to read " * 200)
    config = micro(steps=4, data=str(texts))
    train(config)
    (Path(config.out) / "result.json").unlink()
    (texts / "0.txt").write_text("other words to read " * 200)
    with pytest.raises(ValueError, match="was trained on another corpus"):
        train(again(config))


def test_damaged_checkpoints_are_reported(micro):
    config = micro(steps=4)
    train(config)
    (Path(config.out) / "result.json").unlink()
    path = Path(config.out) / "checkpoints" / "step-00000004" / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(
        ValueError, match=r"is damaged: it has \d+ bytes and should have \d+. Delete"
    ):
        train(again(config))
    shutil.rmtree(path.parent)
    path = path.parents[1] / "step-00000002" / path.name
    whole = path.read_bytes()
    path.write_bytes(bytes(64) + whole[64:])
    with pytest.raises(ValueError, match=r"step-00000002.*is damaged: .*Delete"):
        train(again(config))
    path.write_bytes(whole)
    (path.parent.parent / "step-00000002.bak").mkdir()  # somebody's copy
    assert train(again(config))["steps"] == 4


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", "'gpu' cannot be used"), ("meta", "holds no numbers"), ("cuda", "no CUDA device")],
)
def test_devices_that_are_none_are_reported(micro, device, message):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match=message):
        train(micro(device=device))


def test_a_model_without_experts_trains(micro):
    result = train(micro(steps=2, model={"moe_layers": 0}))
    assert result["imbalance"] == 0


def test_nothing_is_pickled(micro):
    config = micro(steps=2)
    train(config)
    for path in set(Path(config.out).rglob("*")) - set(
        (Path(config.out) / "tensorboard").rglob("*")
    ):
        if path.suffix == ".lock":
            assert path.read_bytes() == b""
            continue
        assert path.suffix in ("", ".json", ".jsonl", ".yaml", ".npz", ".safetensors"), path
        if path.suffix == ".json":
            json.loads(path.read_text())


def test_a_checkpoint_from_before_there_was_settling_continues(micro, tmp_path, monkeypatch):
    from safetensors.torch import save_file

    whole, config = (
        micro(balancer="quantile", out=str(tmp_path / "whole")),
        micro(balancer="quantile"),
    )
    train(whole)
    with monkeypatch.context() as patch:
        stop_at(patch, 6, raises(RuntimeError("power cut")))
        with pytest.raises(RuntimeError, match="power cut"):
            train(config)
    folder = Path(config.out) / "checkpoints" / checkpoints(config)[-1]
    old = {
        name: value
        for name, value in state(config, folder.name).items()
        if ".settling." not in name
    }
    save_file(old, folder / "tensors.safetensors")
    about = json.loads((folder / "state.json").read_text())
    about["files"]["tensors.safetensors"] = (folder / "tensors.safetensors").stat().st_size
    # checkpoints had no digests then
    del about["digests"]
    (folder / "state.json").write_text(json.dumps(about))
    train(again(config))
    one, other = state(config, "step-00000008"), state(whole, "step-00000008")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one if ".settling." not in name)


def test_a_second_training_in_the_folder_is_refused(micro, monkeypatch):
    """Both would append to one log and replace each other's checkpoints."""
    config = micro()
    refused = []

    def try_another():
        with pytest.raises(ValueError, match="another process is training in") as error:
            train(again(config))
        refused.append(error)

    stop_at(monkeypatch, 3, lambda *_: try_another() if not refused else None)
    assert train(config)["steps"] == 8
    assert len(refused) == 1
    assert len(rows(config, "train")) == 8
    # the lock went with its owner
    (Path(config.out) / "result.json").unlink()
    assert train(again(config))["steps"] == 8


def crashed(micro, monkeypatch, **changes):
    """A training that crashed in its sixth step, with a checkpoint of the fourth."""
    config = micro(**{"checkpoint_every": 4, **changes})
    with monkeypatch.context() as patch:
        stop_at(patch, 6, raises(RuntimeError("power cut")))
        with pytest.raises(RuntimeError, match="power cut"):
            train(config)
    return config


@pytest.mark.parametrize("damage", ['{"kind": "tr', "[1]", "\0\0\0", "null"])
def test_a_damaged_line_of_metrics_is_refused_by_number(micro, monkeypatch, damage):
    config = crashed(micro, monkeypatch)
    path = Path(config.out) / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], damage, *lines[2:]]) + "\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2 is damaged.*delete that line"):
        train(again(config))
    # behind the checkpoint a crash may leave anything
    path.write_text("\n".join([*lines[:5], damage, *lines[5:], damage]) + "\n")
    train(again(config))
    assert [row["step"] for row in rows(config, "train")] == list(range(1, 9))


def test_bits_that_flipped_in_a_checkpoint_are_refused(micro, monkeypatch):
    config = crashed(micro, monkeypatch)
    folder = Path(config.out) / "checkpoints" / "step-00000004"
    path = folder / "tensors.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    with pytest.raises(ValueError, match=r"tensors.safetensors is damaged: .*another digest"):
        train(again(config))
    # a checkpoint from before there were digests still loads
    path.write_bytes(whole)
    about = json.loads((folder / "state.json").read_text())
    del about["digests"]
    (folder / "state.json").write_text(json.dumps(about))
    assert train(again(config))["steps"] == 8


def test_a_weight_of_another_shape_is_refused_by_name(micro, monkeypatch):
    from safetensors.torch import save_file

    config = crashed(micro, monkeypatch)
    folder = Path(config.out) / "checkpoints" / "step-00000004"
    tensors = state(config, folder.name)
    name = next(name for name in tensors if name.startswith("model.") and tensors[name].dim() == 2)
    save_file({**tensors, name: torch.zeros(1, 1)}, folder / "tensors.safetensors")
    about = json.loads((folder / "state.json").read_text())
    about["files"] = {"tensors.safetensors": (folder / "tensors.safetensors").stat().st_size}
    about.pop("digests", None)
    (folder / "state.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=rf"{name} has shape \(1, 1\)"):
        train(again(config))


def test_a_garbled_state_is_named(micro, monkeypatch):
    config = crashed(micro, monkeypatch)
    path = Path(config.out) / "checkpoints" / "step-00000004" / "state.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"state.json is damaged"):
        train(again(config))
