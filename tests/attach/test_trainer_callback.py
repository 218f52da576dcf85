"""equipoise.TrainerCallback: balanced when its Trainer begins to train, and then as by hand."""

import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback

import equipoise
from tests.attach.test_trainer import Text, trainer
from tests.attach.tools import shift_of, tiny
from tests.integrations.fetching import fetch, run_python, run_tests


class Loads(TrainerCallback):
    """Keeps the loads of every step."""

    def __init__(self, balancing_of):
        self.balancing_of = balancing_of
        self.steps = []

    def on_step_end(self, *args, **kwargs):
        self.steps.append(self.balancing_of().metrics(loads=True)["loads"])


class ByCallback:
    """Passed where `trainer` of the other tests takes a balancing."""

    def __init__(self, callback):
        self.own = callback

    def callback(self):
        return self.own


def train_by_hand(model, folder, rule, **options):
    balancing = equipoise.balance(model, rule)
    return balancing, train(trainer(model, folder, balancing, **options), lambda: balancing)


def train_by_callback(model, folder, rule, **options):
    callback = equipoise.TrainerCallback(rule)
    run = trainer(model, folder, ByCallback(callback), **options)
    assert callback.balancing is None
    found = train(run, lambda: callback.balancing)
    return callback.balancing, found


def train(run, balancing_of):
    loads = Loads(balancing_of)
    run.add_callback(loads)
    run.train()
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    return loads.steps, losses, run.model.state_dict()


@pytest.mark.parametrize("rule", ["deepseek", "curvature"])
@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_counts_and_losses_are_those_of_attaching_by_hand(name, rule, checkpointed, tmp_path):
    """To the last digit."""
    options = {"gradient_checkpointing": checkpointed, "logging_steps": 1}
    by_hand, expected = train_by_hand(tiny(name), tmp_path, rule, **options)
    by_callback, found = train_by_callback(tiny(name), tmp_path, rule, **options)
    assert found[:2] == expected[:2]
    assert len(found[0]) == 4
    assert all(torch.equal(found[2][key], value) for key, value in expected[2].items())
    assert torch.equal(shift_of(by_callback), shift_of(by_hand))


def test_a_model_made_by_model_init_is_balanced_each_time(tmp_path):
    callback = equipoise.TrainerCallback("deepseek", update_rate=0.01)
    arguments = trainer(tiny("mixtral"), tmp_path).args
    run = Trainer(
        model_init=lambda: tiny("mixtral"),
        args=arguments,
        train_dataset=Text(),
        callbacks=[callback],
    )
    run.train()
    first = callback.balancing
    run.train()
    assert callback.balancing is not first
    assert not first.context.attached
    assert first.steps == callback.balancing.steps == 4
    assert torch.equal(shift_of(callback.balancing), shift_of(first))


def test_a_second_training_of_one_model_goes_on(tmp_path):
    callback = equipoise.TrainerCallback()
    run = trainer(tiny("deepseek_v3"), tmp_path, ByCallback(callback))
    run.train()
    first = callback.balancing
    run.train()
    assert callback.balancing is first
    assert first.steps == 8


def test_a_callback_may_be_given_as_a_class(tmp_path):
    model = tiny("deepseek_v3")
    run = Trainer(
        model,
        trainer(model, tmp_path).args,
        train_dataset=Text(),
        callbacks=[equipoise.TrainerCallback],
    )
    run.train()
    assert model.model.layers[1].mlp.gate.e_score_correction_bias.any()


@pytest.mark.parametrize("name", ["deepseek_v3", "mixtral"])
def test_a_resumed_training_repeats_the_unbroken_one(name, tmp_path):
    whole, unbroken = tiny(name), equipoise.TrainerCallback("smebu")
    settings = {"save_strategy": "steps", "save_steps": 2}
    trainer(whole, tmp_path, ByCallback(unbroken), **settings).train()
    folder = tmp_path / "checkpoint-2"
    assert (folder / "equipoise.safetensors").is_file()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    resumed = equipoise.TrainerCallback("smebu")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the experts or gates")
        run = trainer(model, tmp_path, ByCallback(resumed))
        run.train(resume_from_checkpoint=str(folder))
    assert resumed.balancing.metrics(loads=True) == unbroken.balancing.metrics(loads=True)
    assert torch.equal(shift_of(resumed.balancing), shift_of(unbroken.balancing))
    assert all(
        torch.equal(value, whole.state_dict()[key]) for key, value in model.state_dict().items()
    )


def test_resuming_a_training_without_equipoise_is_refused(tmp_path):
    model = tiny("deepseek_v3")
    trainer(model, tmp_path, save_strategy="steps", save_steps=2, max_steps=2).train()
    run = trainer(model, tmp_path, ByCallback(equipoise.TrainerCallback()))
    with pytest.raises(FileNotFoundError, match="begin a new training from its weights"):
        run.train(resume_from_checkpoint=True)


def test_an_adapted_model_counts_once_under_checkpointing(tmp_path):
    """PEFT wraps before the Trainer is made, Trainer sets checkpointing and accelerate prepares
    before training begins: all of it is there when the callback attaches.
    """
    config = LoraConfig(r=2, target_modules=["o_proj"])
    model = get_peft_model(tiny("deepseek_v3"), config)
    callback = equipoise.TrainerCallback()
    run = trainer(
        model,
        tmp_path,
        ByCallback(callback),
        gradient_checkpointing=True,
        save_strategy="steps",
        save_steps=4,
    )
    run.train()
    rows, accumulation, length, top_k = 2, 2, 8, 2
    loads = callback.balancing.metrics(loads=True)["loads"]
    assert {sum(each) for each in loads.values()} == {rows * accumulation * length * top_k}
    assert (tmp_path / "checkpoint-4" / "equipoise.safetensors").is_file()


def test_mistakes_are_reported(tmp_path):
    with pytest.raises(TypeError, match="leave optimizer= out"):
        equipoise.TrainerCallback(optimizer=None)
    callback = equipoise.TrainerCallback("no_such_rule")
    with pytest.raises(ValueError, match="no_such_rule"):
        trainer(tiny("mixtral"), tmp_path, ByCallback(callback)).train()
    with pytest.raises(RuntimeError, match=r"add it before trainer\.train"):
        equipoise.TrainerCallback().on_optimizer_step(None, None, None)


def test_a_callback_is_pickled_before_a_training():
    """Ray sends callbacks to its workers so."""
    copied = pickle.loads(pickle.dumps(equipoise.TrainerCallback("smebu", update_rate=0.01)))
    assert (copied.balancer, copied.options) == ("smebu", {"update_rate": 0.01})


def test_importing_equipoise_imports_no_transformers():
    code = "import sys, equipoise; assert 'transformers' not in sys.modules; "
    code += "equipoise.TrainerCallback; assert 'transformers' in sys.modules"
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        check=True,
    )


def test_the_metrics_are_in_tensorboards_file(tmp_path):
    """Its reporter stands before the user's callbacks: ours is moved to the front."""
    pytest.importorskip("tensorboard", reason="a slow test fetches tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    os.environ["TENSORBOARD_LOGGING_DIR"] = str(tmp_path / "events")
    callback = equipoise.TrainerCallback("curvature")
    run = trainer(tiny("deepseek_v3"), tmp_path, ByCallback(callback), report_to=["tensorboard"])
    del os.environ["TENSORBOARD_LOGGING_DIR"]
    run.train()
    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder)).Reload()
    written = [event.value for event in events.Scalars("train/imbalance")]
    logged = [entry["imbalance"] for entry in run.state.log_history if "loss" in entry]
    assert written == pytest.approx(logged)
    assert len(events.Scalars("train/max_violation")) == len(written) == 4


@pytest.mark.slow
def test_tensorboard_is_fetched(tmp_path):
    packages = ["tensorboard==2.21.0", "grpcio", "markdown", "pillow", "werkzeug"]
    packages += ["tensorboard-data-server", "absl-py", "protobuf"]
    run_tests(fetch(tmp_path, *packages), Path(__file__), "in_tensorboards_file", passed=1)


def train_on_two_ranks():
    """DDP through accelerate: the callback attaches after it, by hand before it."""
    results = []
    for by_hand in (True, False):
        model = tiny("deepseek_v3")
        callback = equipoise.TrainerCallback("smebu", update_rate=0.01)
        if by_hand:
            callback = equipoise.balance(model, "smebu", update_rate=0.01).callback()
        with tempfile.TemporaryDirectory() as folder:
            run = trainer(model, folder, ByCallback(callback))
            run.train()
        assert type(run.model_wrapped).__name__ == "DistributedDataParallel"
        measured = callback.balancing.metrics(loads=True)
        results.append((measured, shift_of(callback.balancing).tolist()))
    assert results[0] == results[1]
    ranks, rows, accumulation, length, top_k = 2, 2, 2, 8, 2
    counted = ranks * rows * accumulation * length * top_k
    assert {sum(each) for each in results[1][0]["loads"].values()} == {counted}


def test_ranks_are_counted_together():
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    run_python(Path(equipoise.__file__).parents[1], *command)


if __name__ == "__main__":
    train_on_two_ranks()
